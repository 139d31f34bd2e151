package palisade

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// holderVariable makes the test program a process that holds a lock, at the node that the variable names.
const holderVariable = "PALISADE_TEST_HOLDER"

func TestMain(m *testing.M) {
	if endpoint := os.Getenv(holderVariable); endpoint != "" {
		if err := holdAndLook(endpoint); err != nil {
			fmt.Println("failed:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// holdAndLook takes a lock, and looks at it when a line arrives. Nothing else can run between the line and the look.
func holdAndLook(endpoint string) error {
	c, err := NewClient(endpoint, Options{})
	if err != nil {
		return err
	}
	lock, err := c.Lock(context.Background(), "nightly", LockOptions{TTL: ttl})
	if err != nil {
		return err
	}
	fmt.Println("held", lock.Valid())
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}
	fmt.Println("look", lock.Valid())
	<-lock.Lost()
	fmt.Println("lost", lock.Valid())
	return nil
}

func TestAProcessThatWasStoppedFindsItsLockLost(t *testing.T) {
	n := newNode(t, func(p *peer) { p.grant(); p.hang() })
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), holderVariable+"="+n.address())
	input, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = child.Process.Kill()
		_ = child.Wait()
	}()
	lines := bufio.NewReader(output)
	expectLine(t, lines, "held true\n")
	signal(t, child, syscall.SIGSTOP)
	time.Sleep(ttl)
	if _, err := io.WriteString(input, "look\n"); err != nil {
		t.Fatal(err)
	}
	signal(t, child, syscall.SIGCONT)
	expectLine(t, lines, "look false\n")
	expectLine(t, lines, "lost false\n")
}

func signal(t *testing.T, child *exec.Cmd, signal os.Signal) {
	t.Helper()
	if err := child.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
}

func expectLine(t *testing.T, lines *bufio.Reader, want string) {
	t.Helper()
	if got, err := lines.ReadString('\n'); got != want {
		t.Fatalf("the process said %q (%v); the test expects %q", got, err, want)
	}
}

func TestTheClockGoesOnAndNeverBack(t *testing.T) {
	before, wall := now(), time.Now()
	time.Sleep(20 * time.Millisecond)
	if passed := now().sub(before); passed < 20*time.Millisecond || passed > time.Since(wall)+time.Minute {
		t.Fatalf("%v have passed", passed)
	}
	// It is the clock that counts suspends, and that no program can set: it says what the kernel calls the uptime.
	var up syscall.Sysinfo_t
	if err := syscall.Sysinfo(&up); err != nil {
		t.Skip(err)
	}
	if math.Abs(float64(now())/float64(second)-float64(up.Uptime)) > 2 {
		t.Fatalf("the clock says %v, and the machine runs for %d s", time.Duration(now()), up.Uptime)
	}
}
