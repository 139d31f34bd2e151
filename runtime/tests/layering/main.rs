//! The architecture's invariants (docs/architecture.md), asserted from the manifests and the source.
//!
//! Every rule is also shown code that breaks it, so that a rule that sees nothing is noticed.

mod code;
mod cycles;
mod imports;
mod modules;
mod packages;
mod rules;
mod spec;
