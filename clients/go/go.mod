module palisade/clients/go

go 1.19
