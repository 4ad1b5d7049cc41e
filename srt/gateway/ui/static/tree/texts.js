/** The texts of nodes, asked for when somebody wants to see them. */

import { ApiError, getJson } from '../api.js';
import { TOKENS, UID } from './layout.js';

/** @typedef {import('../types.js').Node} Node */

const MOST = 2000; // kept
const AT_ONCE = 4;
const AGAIN_MS = 5000; // after a text could not be had

/** @param {number | string} replica @param {Node} node */
export function nameOf(replica, node) {
  return `${replica}/${node[UID]}/${node[TOKENS]}`;
}

export class Texts {
  /** @param {import('../keys.js').Keys} keys */
  constructor(keys) {
    this.keys = keys;
    /** By `replica/uid/tokens`: a node that is split keeps its number. @type {Map<string, string>} */
    this.known = new Map();
    /** @type {Map<string, Promise<string>>} */
    this.asked = new Map();
    /** When a text could not be had, by the same names. @type {Map<string, number>} */
    this.failed = new Map();
  }

  /** The text of a node; '' if it has been evicted. @param {number} replica @param {Node} node @returns {Promise<string>} */
  get(replica, node) {
    const name = nameOf(replica, node);
    const known = this.known.get(name);
    if (known !== undefined) return Promise.resolve(known);
    if (performance.now() - (this.failed.get(name) ?? -Infinity) < AGAIN_MS) return Promise.resolve('');
    let asked = this.asked.get(name);
    if (!asked) {
      asked = this.ask(replica, node[UID], name).finally(() => this.asked.delete(name));
      this.asked.set(name, asked);
    }
    return asked;
  }

  /** @param {number} replica @param {number} uid @param {string} name */
  async ask(replica, uid, name) {
    try {
      const found = await getJson(`/ui/text?replica=${replica}&node=${uid}`, this.keys.watchHeaders());
      const text = found.cut ? `${found.text} …` : found.text;
      this.known.set(name, text);
      for (const first of this.known.keys()) {
        if (this.known.size <= MOST) break;
        this.known.delete(first);
      }
      return text;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (this.failed.size >= MOST) this.failed.clear();
      this.failed.set(name, performance.now());
      return '';
    }
  }

  /** Ask for several; whether more are known then. @param {number} replica @param {Node[]} nodes */
  async getAll(replica, nodes) {
    const unknown = nodes.filter((node) => !this.known.has(nameOf(replica, node)));
    for (let i = 0; i < unknown.length; i += AT_ONCE) {
      await Promise.all(unknown.slice(i, i + AT_ONCE).map((node) => this.get(replica, node)));
    }
    return unknown.some((node) => this.known.has(nameOf(replica, node)));
  }

  /** Uids of replica whose text is known, and has `words`. @param {number} replica @param {string} words */
  having(replica, words) {
    /** @type {Set<number>} */
    const found = new Set();
    for (const [name, text] of this.known) {
      const [of, uid] = name.split('/').map(Number);
      if (of === replica && text.toLowerCase().includes(words)) found.add(uid);
    }
    return found;
  }
}
