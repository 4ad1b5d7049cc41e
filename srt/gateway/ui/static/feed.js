/** What the server tells of itself, as long as somebody looks. */

import { ApiError, events } from './api.js';

/** @typedef {import('./types.js').Node} Node */
/** @typedef {import('./types.js').Queue} Queue */

const KEEP_S = 600; // of pulses
const MOMENTS = 300; // of the tree, for the slider, one each second at most
const FIRST_WAIT_MS = 500;
const MOST_WAIT_MS = 5000;

/** The tree of a replica, and how it was. */
export class TreeState {
  constructor() {
    /** @type {Map<number, Node>} */
    this.nodes = new Map();
    this.isWhole = true;
    this.cachedTokens = 0;
    this.evictedTokens = 0;
    this.matches = 0;
    this.t = 0;
    /** Gone with the last event. @type {number[]} */
    this.removed = [];
    /** @type {{t: number, nodes: Map<number, Node>, matches: number, queue: Queue | undefined}[]} */
    this.moments = [];
  }

  /** @param {any} event */
  take(event) {
    if (event.full) this.nodes.clear();
    this.removed = event.removed;
    for (const uid of event.removed) this.nodes.delete(uid);
    for (const node of event.nodes) this.nodes.set(node[0], node);
    this.isWhole = event.is_whole;
    this.cachedTokens = event.cached_tokens;
    this.evictedTokens = event.evicted_tokens_total;
    this.matches = event.matches;
    this.t = event.t;
  }

  /** @param {Queue | undefined} queue */
  remember(queue) {
    const last = this.moments[this.moments.length - 1];
    if (last && this.t - last.t < 0.9) return;
    this.moments.push({ t: this.t, nodes: new Map(this.nodes), matches: this.matches, queue });
    if (this.moments.length > MOMENTS) this.moments.shift();
  }
}

/** What is another when trees begin anew. @param {import('./types.js').Hello} hello */
function ringOf(hello) {
  return JSON.stringify([hello.launcher, hello.epoch, hello.incarnations]);
}

/** Events: `status`, `hello`, `pulse`, `tree`, `queue`, `run`; the state is in the fields. */
export class Feed extends EventTarget {
  /** @param {import('./keys.js').Keys} keys */
  constructor(keys) {
    super();
    this.keys = keys;
    /** @type {{state: 'off' | 'connecting' | 'live' | 'refused' | 'lost', message: string}} */
    this.status = { state: 'off', message: '' };
    /** @type {import('./types.js').Hello | null} */
    this.hello = null;
    /** @type {import('./types.js').Pulse[]} */
    this.pulses = [];
    /** @type {Map<number, TreeState>} */
    this.trees = new Map();
    /** @type {Map<number, Queue>} */
    this.queues = new Map();
    /** @type {Map<string, import('./types.js').Run>} */
    this.runs = new Map();
    /** @type {AbortController | null} */
    this.controller = null;
  }

  start() {
    if (this.controller) return;
    this.controller = new AbortController();
    this.read(this.controller.signal);
  }

  stop() {
    this.controller?.abort();
    this.controller = null;
    this.setStatus('off', '');
  }

  /** @param {AbortSignal} signal */
  async read(signal) {
    let wait = FIRST_WAIT_MS;
    while (!signal.aborted) {
      if (this.status.state !== 'lost') this.setStatus('connecting', '');
      try {
        for await (const event of events('/ui/events', null, this.keys.watchHeaders(), signal)) {
          wait = FIRST_WAIT_MS;
          this.take(event);
        }
      } catch (error) {
        if (signal.aborted) return;
        if (error instanceof ApiError && (error.status === 401 || error.status === 403)) {
          this.setStatus('refused', `${error.message}: it goes in with the button "Keys"`);
          return;
        }
      }
      if (signal.aborted) return;
      this.setStatus('lost', '');
      await new Promise((resolve) => setTimeout(resolve, wait));
      wait = Math.min(2 * wait, MOST_WAIT_MS);
    }
  }

  /** @param {typeof this.status.state} state @param {string} message */
  setStatus(state, message) {
    if (this.status.state === state && this.status.message === message) return;
    this.status = { state, message };
    this.tell('status');
  }

  /** @param {any} event */
  take(event) {
    this.setStatus('live', '');
    if (event.type === 'hello') {
      // What is known of these schedulers stays: somebody has only looked elsewhere.
      const isSame = this.hello && ringOf(this.hello) === ringOf(event);
      this.hello = event;
      if (!isSame) this.trees.clear();
      this.queues.clear();
      if (event.whole) this.runs.clear(); // all that are kept follow
    } else if (event.type === 'pulse') {
      this.pulses.push(event);
      while (this.pulses[0].t < event.t - KEEP_S) this.pulses.shift();
    } else if (event.type === 'tree') {
      this.treeOf(event.replica).take(event);
    } else if (event.type === 'queue') {
      this.queues.set(event.replica, event);
    } else if (event.type === 'run') {
      this.takeRun(event);
    }
    if (event.type === 'tree') this.treeOf(event.replica).remember(this.queues.get(event.replica));
    this.tell(event.type, event);
  }

  /** @param {any} event */
  takeRun(event) {
    const known = this.runs.get(event.run) ?? { run: event.run, name: event.name, started: event.started, ended: null, cut: 0, heard: 0, steps: new Map() };
    for (const step of event.steps) known.steps.set(step.id, step);
    known.ended = event.ended;
    known.cut = event.cut;
    known.heard = event.t;
    this.runs.set(event.run, known);
    for (const gone of event.dropped) this.runs.delete(gone);
  }

  /** @param {number} replica */
  treeOf(replica) {
    let found = this.trees.get(replica);
    if (!found) this.trees.set(replica, (found = new TreeState()));
    return found;
  }

  /** @param {string} type @param {any} [detail] */
  tell(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }
}
