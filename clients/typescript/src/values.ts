/** The values that are to replace that of the grant, and that no server has confirmed yet. */

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
   * The oldest value, unless it was handed out over this link before. It counts as handed out from now on. The next one
   * waits for its answer: a repetition after a reconnect must not undo a later value.
   */
  takeUnsent(link: number): { n: number; value: string } | undefined {
    const [oldest] = this.#values;
    if (oldest === undefined) return undefined;
    const [n, pending] = oldest;
    if (pending.link === link) return undefined;
    pending.link = link;
    return { n, value: pending.value };
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
