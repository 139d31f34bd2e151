/**
 * The clock that leases are counted on, in milliseconds. It must not stand still while the machine sleeps, because the
 * cluster goes on counting.
 */
export interface Clock {
  /** Milliseconds since some moment; never goes back. */
  now(): number;
  /** Whether timers stand still during a suspend that `now` counts: then a sleeper looks at the clock in between. */
  readonly outlivesTimers: boolean;
}

/** Readings that differ by less than this show no suspend: `/proc/uptime` counts in hundredths of a second. */
const RESOLUTION_MS = 50;

/**
 * A monotonic clock, with the time added that it stood still.
 *
 * `performance.now()` is `CLOCK_MONOTONIC` on Linux, which a suspend stops; `/proc/uptime` is `CLOCK_BOOTTIME`, which
 * it does not stop. The two run at the same rate, so their difference grows by suspends alone. The sum is as fine as
 * `performance.now()`, and a suspend is counted within 50 ms, never too short by more than that.
 */
export class SuspendClock implements Clock {
  readonly outlivesTimers: boolean;
  readonly #monotonic: () => number;
  readonly #uptime: () => number | undefined;
  /** The least that uptime can have been ahead of the monotonic clock at the start. */
  #baseline: number | undefined;
  #suspended = 0;
  #latest = 0;

  /**
   * @param monotonic a clock that may stop during a suspend, in milliseconds
   * @param uptime a clock that does not, in milliseconds, rounded down to hundredths of a second; `undefined` if there
   *   is none, and then a suspend is not counted
   */
  constructor(monotonic: () => number, uptime: () => number | undefined) {
    this.#monotonic = monotonic;
    this.#uptime = uptime;
    this.#baseline = this.#difference()?.least;
    this.outlivesTimers = this.#baseline !== undefined;
  }

  now(): number {
    const difference = this.#baseline === undefined ? undefined : this.#difference();
    if (difference !== undefined && this.#baseline !== undefined) {
      const grown = difference.most - this.#baseline;
      this.#suspended = Math.max(this.#suspended, grown < RESOLUTION_MS ? 0 : grown);
    }
    this.#latest = Math.max(this.#latest, this.#monotonic() + this.#suspended);
    return this.#latest;
  }

  /** How far uptime is ahead of the monotonic clock; `undefined` if there is no reading without a long interruption. */
  #difference(): { least: number; most: number } | undefined {
    for (let attempt = 0; attempt < 20; attempt++) {
      const before = this.#monotonic();
      const uptime = this.#uptime();
      const after = this.#monotonic();
      if (uptime === undefined) return undefined;
      if (after - before < 5) return { least: uptime - after, most: uptime + 10 - before };
    }
    return undefined;
  }
}
