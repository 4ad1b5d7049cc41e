/** For `python -m bench.ui`: how many frames per second the tree is drawn with. */

import { draw, paletteOf } from './draw.js';
import { BELOW, LOCKS, layout, Layout } from './layout.js';

/** @typedef {import('../types.js').Node} Node */

const CHANGED = 200; // nodes, with each frame

/** @param {number} count @returns {Map<number, Node>} */
function madeUp(count) {
  /** @type {Map<number, Node>} */
  const nodes = new Map();
  /** @type {Node[]} */
  const list = [];
  for (let uid = 1; uid <= count; uid += 1) {
    const parent = uid < 20 ? null : list[Math.floor((uid * 7919) % Math.min(list.length, uid / 3 + 1))];
    const start = parent ? parent[2] + parent[3] : 0;
    const tokens = 20 + ((uid * 104729) % 90);
    /** @type {Node} */
    const node = [uid, parent ? parent[0] : 0, start, tokens, 0, uid, 1, tokens, 1];
    nodes.set(uid, node);
    list.push(node);
    for (let above = parent; above; above = nodes.get(above[1]) ?? null) above[BELOW] += tokens;
  }
  return nodes;
}

/**
 * Draws `count` nodes for some seconds, some of which change with each frame.
 * @param {number} count
 * @param {number} seconds
 */
export async function drawMany(count, seconds) {
  const nodes = madeUp(count);
  const canvas = document.createElement('canvas');
  canvas.width = 1200;
  canvas.height = 640;
  document.body.append(canvas);
  const ctx = canvas.getContext('2d');
  if (!ctx) throw new Error('no canvas');
  const boxes = new Layout();
  const scene = { boxes, width: 1200, height: 640, since: count / 2, palette: paletteOf(document.body), marked: new Set([3]), under: 4, labels: new Map(), replica: '0', ghosts: [] };
  const began = performance.now();
  let frames = 0;
  let busy = 0;
  while (performance.now() - began < 1000 * seconds) {
    await new Promise(requestAnimationFrame);
    const start = performance.now();
    for (let i = 1; i <= CHANGED; i += 1) {
      const node = nodes.get(1 + ((frames * 31 + i * 97) % count));
      if (node) node[LOCKS] = 1 - node[LOCKS];
    }
    layout(nodes, 0, scene.width, 0, boxes);
    draw(ctx, scene, start);
    busy += performance.now() - start;
    frames += 1;
  }
  canvas.remove();
  const took = performance.now() - began;
  return { nodes: count, boxes: boxes.count, framesPerSecond: (1000 * frames) / took, msPerFrame: busy / frames };
}
