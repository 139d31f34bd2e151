package palisade

import (
	"syscall"
	"unsafe"
)

// clockBoottime is CLOCK_BOOTTIME of linux/time.h: monotonic, and it goes on while the machine is suspended.
const clockBoottime = 7

// now reads the clock that leases are counted on.
func now() instant {
	var at syscall.Timespec
	_, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&at)), 0)
	if errno != 0 {
		// Every kernel since 2.6.39 has this clock. A sandbox that refuses it refuses it from the first reading on, so
		// the two clocks are never mixed.
		return monotonic()
	}
	return instant(at.Nano())
}
