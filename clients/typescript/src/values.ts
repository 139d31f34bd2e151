/** The values that are to replace that of the grant, and that no server has confirmed yet. */

/** How many values may be unanswered on a connection (docs/api.md). */
const MOST_OPEN = 16;

interface PendingValue {
  readonly value: string;
  /** The link over which it was handed out last. */
  link: number | undefined;
}

/** Values in the order in which the user gave them, with their numbers. */
export class PendingValues {
  readonly #values = new Map<number, PendingValue>();
  #last = 0;

  /** Adds a value. Returns its number. */
  add(value: string): number {
    this.#last += 1;
    this.#values.set(this.#last, { value, link: undefined });
    return this.#last;
  }

  /**
   * The values to hand out over this link: those that were not yet, as many as a server takes. They count as handed out
   * from now on.
   */
  takeUnsent(link: number): { n: number; value: string }[] {
    const unsent = [...this.#values].filter(([, pending]) => pending.link !== link);
    const room = MOST_OPEN - (this.#values.size - unsent.length);
    return unsent.slice(0, Math.max(0, room)).map(([n, pending]) => {
      pending.link = link;
      return { n, value: pending.value };
    });
  }

  /** The numbers of all values, or of those that were handed out over this link. */
  numbers(link?: number): number[] {
    const chosen = [...this.#values].filter(([, pending]) => link === undefined || pending.link === link);
    return chosen.map(([n]) => n);
  }

  /** Forgets a value. Says whether it was there. */
  delete(n: number): boolean {
    return this.#values.delete(n);
  }
}
