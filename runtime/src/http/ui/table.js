// What this page knows of the locks and records: a listing, and what the events after it have changed.

/** Events that are kept for the pages of locks. */
const KEPT = 2_000;

export class Table {
  /** Locks and records by their keys. */
  locks = new Map();
  records = new Map();
  /** What was heard since the page was opened, oldest first: events, and gaps between them. */
  history = [];
  /** The sessions' deadlines on this page's clock, and the longest time that each was seen to have. */
  #deadlines = new Map();
  #listed = new Set();

  /** A part of the present state. The first one replaces what was known. */
  list({ begins, locks, records, complete }) {
    if (begins) this.#listed = new Set();
    for (const lock of locks) this.#put(lock);
    for (const record of records) {
      this.records.set(record.key, record);
      this.#listed.add(`r${record.key}`);
    }
    if (complete) this.#forgetUnlisted();
  }

  /** The state as a look shows it, for a page without a watch. */
  replace(locks, records) {
    this.list({ begins: true, locks, records, complete: true });
  }

  #put(lock) {
    this.locks.set(lock.key, { key: lock.key, holders: lock.holders, queue: lock.queue });
    this.#listed.add(`l${lock.key}`);
    lock.holders.forEach((holder) => this.#expires(holder, holder.expires_in_ms));
  }

  #forgetUnlisted() {
    for (const key of this.locks.keys()) if (!this.#listed.has(`l${key}`)) this.locks.delete(key);
    for (const key of this.records.keys()) if (!this.#listed.has(`r${key}`)) this.records.delete(key);
  }

  /** What happened. */
  apply(event) {
    this.history.push({ at: new Date(), ...event });
    if (this.history.length > KEPT) this.history.shift();
    const { key, session } = event;
    if (event.event === "put") this.records.set(key, { ...this.records.get(key), key, version: event.version, fence: event.fence });
    if (event.event === "deleted") this.records.delete(key);
    const lock = this.locks.get(key) ?? { key, holders: [], queue: [] };
    const others = (list) => list.filter((each) => each.session !== session);
    switch (event.event) {
      case "granted":
        lock.holders = [...others(lock.holders), { holds: 1, ...event }];
        lock.queue = others(lock.queue);
        break;
      case "queued":
        lock.queue = [...others(lock.queue), event];
        break;
      case "value":
        lock.holders = lock.holders.map((each) => (each.session === session ? { ...each, value: event.value } : each));
        break;
      case "released":
        lock.holders = lock.holders.filter((each) => each.session !== session || each.token !== event.token);
        break;
      case "withdrawn":
        lock.queue = others(lock.queue);
        break;
      default:
        return;
    }
    if (lock.holders.length + lock.queue.length > 0) this.locks.set(key, lock);
    else this.locks.delete(key);
  }

  /** Events are missing here. */
  gap(text) {
    this.history.push({ at: new Date(), event: "gap", text });
  }

  /** What a look shows of deadlines: keeping a session alive is no event. */
  look(locks, ageMs) {
    for (const lock of locks) {
      for (const holder of lock.holders) this.#expires(holder, holder.expires_in_ms - (ageMs ?? 0));
      const known = this.locks.get(lock.key);
      const holds = new Map(lock.holders.map((holder) => [holder.session, holder.holds]));
      known?.holders.forEach((holder) => (holder.holds = holds.get(holder.session) ?? holder.holds));
    }
  }

  /** The sizes of records, which no event has. */
  weigh(records) {
    for (const record of records) if (this.records.get(record.key)?.version === record.version) this.records.set(record.key, record);
  }

  #expires({ session }, inMs) {
    const longest = Math.max(inMs, this.#deadlines.get(session)?.longest ?? 0);
    this.#deadlines.set(session, { at: performance.now() + inMs, longest });
    if (this.#deadlines.size > 10_000) this.#deadlines.delete(this.#deadlines.keys().next().value);
  }

  /** The time that a session has left, and which part that is of the longest that it was seen to have. */
  left({ session }) {
    const deadline = this.#deadlines.get(session);
    if (!deadline) return undefined;
    const ms = Math.max(0, deadline.at - performance.now());
    return { ms, part: deadline.longest > 0 ? Math.min(1, ms / deadline.longest) : 0 };
  }

  /** The locks in the order of their keys, that a search finds in key, owner, or value. */
  find(text) {
    const wanted = text.trim().toLowerCase();
    const has = (each) => [each.owner, each.value, `${each.token ?? ""}`].some((field) => field?.toLowerCase().includes(wanted));
    const found = [...this.locks.values()].filter((lock) => !wanted || lock.key.toLowerCase().includes(wanted) || [...lock.holders, ...lock.queue].some(has));
    return found.sort(byKey);
  }

  findRecords(text) {
    const wanted = text.trim().toLowerCase();
    return [...this.records.values()].filter((record) => record.key.toLowerCase().includes(wanted)).sort(byKey);
  }

  /** What was heard of a lock, newest first. */
  historyOf(key) {
    return this.history.filter((event) => event.key === key || event.event === "gap").reverse();
  }
}

const byKey = (one, other) => (one.key < other.key ? -1 : 1);
