/** Where the nodes of the tree are drawn: an icicle, as wide as the tokens in a node and below it. */

/** @typedef {import('../types.js').Node} Node */

export const UID = 0;
export const PARENT = 1;
export const START = 2;
export const TOKENS = 3;
export const LOCKS = 4;
export const LAST_MATCH = 5;
export const MATCHED = 6;
export const BELOW = 7;
export const SPACE = 8;

const THIN = 0.5; // pixels; what is thinner is drawn together

/**
 * Boxes in the order of their rows' parents. `node[i]` is null for a box of several thin nodes, of which
 * there are `more[i]` (with what hangs below them, not counted).
 */
export class Layout {
  constructor() {
    this.count = 0;
    this.rows = 0;
    /** @type {Float32Array} */
    this.x = new Float32Array(1024);
    /** @type {Float32Array} */
    this.width = new Float32Array(1024);
    /** @type {Uint16Array} */
    this.row = new Uint16Array(1024);
    /** @type {Uint32Array} */
    this.more = new Uint32Array(1024);
    /** @type {(Node | null)[]} */
    this.node = [];
  }

  /** @param {Node | null} node @param {number} row @param {number} x @param {number} width @param {number} more */
  add(node, row, x, width, more) {
    if (this.count === this.x.length) this.grow();
    const at = this.count;
    this.x[at] = x;
    this.width[at] = width;
    this.row[at] = row;
    this.more[at] = more;
    this.node[at] = node;
    this.count += 1;
    this.rows = Math.max(this.rows, row + 1);
  }

  grow() {
    const size = 2 * this.x.length;
    const bigger = { x: new Float32Array(size), width: new Float32Array(size), row: new Uint16Array(size), more: new Uint32Array(size) };
    bigger.x.set(this.x);
    bigger.width.set(this.width);
    bigger.row.set(this.row);
    bigger.more.set(this.more);
    Object.assign(this, bigger);
  }

  /** The box at a place, or -1. @param {number} x @param {number} row */
  at(x, row) {
    for (let i = 0; i < this.count; i += 1) {
      if (this.row[i] === row && x >= this.x[i] && x < this.x[i] + this.width[i]) return i;
    }
    return -1;
  }
}

/** Children by parent, those of one salt together, in the order in which they were made. @param {Map<number, Node>} nodes */
export function childrenOf(nodes) {
  /** @type {Map<number, Node[]>} */
  const children = new Map();
  for (const node of nodes.values()) {
    // A parent that is not shown: the node stands at the top.
    const parent = nodes.has(node[PARENT]) ? node[PARENT] : 0;
    const siblings = children.get(parent);
    if (siblings) siblings.push(node);
    else children.set(parent, [node]);
  }
  for (const siblings of children.values()) siblings.sort((a, b) => a[SPACE] - b[SPACE] || a[UID] - b[UID]);
  return children;
}

/**
 * @param {Map<number, Node>} nodes
 * @param {number} focus  the node that takes the whole width; 0: all
 * @param {number} width  pixels
 * @param {number} total  tokens that the whole width stands for where all is shown, at least
 * @param {Layout} [into]
 */
export function layout(nodes, focus, width, total, into = new Layout()) {
  into.count = 0;
  into.rows = 0;
  into.node.length = 0;
  const children = childrenOf(nodes);
  const root = nodes.get(focus);
  const top = root ? [root] : (children.get(0) ?? []);
  let shown = 0;
  for (const node of top) shown += node[BELOW];
  const scale = width / Math.max(1, root ? root[BELOW] : Math.max(total, shown));
  /** @type {{nodes: Node[], x: number, row: number}[]} */
  const open = [{ nodes: top, x: 0, row: 0 }];
  for (let next = open.pop(); next; next = open.pop()) {
    let { x } = next;
    let thin = 0;
    let thinAt = x;
    for (const node of next.nodes) {
      const wide = node[BELOW] * scale;
      if (wide < THIN) {
        if (!thin) thinAt = x;
        thin += 1;
      } else {
        if (thin) into.add(null, next.row, thinAt, x - thinAt, thin);
        thin = 0;
        into.add(node, next.row, x, wide, 0);
        const below = children.get(node[UID]);
        if (below) open.push({ nodes: below, x, row: next.row + 1 });
      }
      x += wide;
    }
    if (thin) into.add(null, next.row, thinAt, Math.max(THIN, x - thinAt), thin);
  }
  return into;
}

/**
 * The nodes, and below them what running requests hold beyond the tree: nodes with negative numbers.
 * @param {Map<number, Node>} nodes
 * @param {import('../types.js').Req[]} running
 */
export function withGrowing(nodes, running) {
  if (!running.length) return nodes;
  const all = new Map(nodes);
  running.forEach((req, index) => {
    const at = nodes.get(req.node);
    const start = at ? at[START] + at[TOKENS] : 0;
    const tokens = req.prompt + req.output - start;
    if (tokens <= 0) return;
    all.set(-1 - index, [-1 - index, at ? req.node : 0, start, tokens, 1, 0, 0, tokens, at ? at[SPACE] : 0]);
    for (const above of pathTo(all, at ? req.node : 0)) {
      /** @type {Node} */
      const wider = [...above];
      wider[BELOW] += tokens;
      all.set(above[UID], wider);
    }
  });
  return all;
}

/** The nodes from a node up to the top. @param {Map<number, Node>} nodes @param {number} uid */
export function pathTo(nodes, uid) {
  /** @type {Node[]} */
  const path = [];
  for (let node = nodes.get(uid); node && path.length <= nodes.size; node = nodes.get(node[PARENT])) path.push(node);
  return path;
}
