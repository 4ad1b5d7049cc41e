/** Draws a layout on a canvas: boxes by colour, then marks, then texts. */

import { visible } from '../dom.js';
import { LAST_MATCH, LOCKS, TOKENS, UID } from './layout.js';
import { nameOf } from './texts.js';

/** @typedef {import('../types.js').Node} Node */

export const ROW = 22; // pixels
const GAP = 1;
const LABEL_FROM = 48; // a box as wide as this has a text
const FADE_MS = 1500;

/** What a node is to the requests: in this order, the first that holds. */
export const STATES = /** @type {const} */ (['computing', 'wanted', 'locked', 'hit', 'evictable']);
export const WORDS = {
  computing: 'being computed by a running request, not in the tree yet',
  wanted: 'a waiting request is going to use it',
  locked: 'held by running requests',
  hit: 'a prompt has gone through it in the last seconds',
  evictable: 'may be evicted',
};

/** @param {Node} node @param {number} since  the number of a match: later ones are hits @returns {typeof STATES[number]} */
export function stateOf(node, since) {
  if (node[UID] < 0) return 'computing';
  if (node[LAST_MATCH] === -1) return 'wanted';
  if (node[LOCKS] > 0) return 'locked';
  return node[LAST_MATCH] > since ? 'hit' : 'evictable';
}

/** @typedef {Record<typeof STATES[number] | 'evicted' | 'text' | 'line' | 'panel' | 'accent', string>} Palette */

/** The colours as the style sheet has them now. @param {HTMLElement} element @returns {Palette} */
export function paletteOf(element) {
  const probe = document.createElement('span');
  element.append(probe);
  const found = /** @type {any} */ ({});
  for (const name of [...STATES, 'evicted', 'text', 'line', 'panel', 'accent']) {
    probe.style.color = `var(--${name})`;
    found[name] = getComputedStyle(probe).color;
  }
  probe.remove();
  return found;
}

/**
 * @typedef {object} Scene
 * @property {import('./layout.js').Layout} boxes
 * @property {number} width
 * @property {number} height
 * @property {number} since  see stateOf
 * @property {Palette} palette
 * @property {Set<number>} marked  uids that are framed
 * @property {number} under  the uid under the pointer
 * @property {Map<string, string>} labels  see Texts
 * @property {string} replica
 * @property {{x: number, width: number, row: number, at: number}[]} ghosts  of what was evicted
 */

/** Returns whether something still moves. @param {CanvasRenderingContext2D} ctx @param {Scene} scene @param {number} now */
export function draw(ctx, scene, now) {
  const { boxes, palette } = scene;
  ctx.clearRect(0, 0, scene.width, scene.height);
  for (const state of STATES) {
    ctx.fillStyle = palette[state];
    ctx.beginPath();
    for (let i = 0; i < boxes.count; i += 1) {
      const node = boxes.node[i];
      if (node && stateOf(node, scene.since) === state) box(ctx, boxes, i);
    }
    ctx.fill();
  }
  drawThin(ctx, scene);
  drawMarks(ctx, scene);
  drawLabels(ctx, scene);
  return drawGhosts(ctx, scene, now);
}

/** @param {CanvasRenderingContext2D} ctx @param {import('./layout.js').Layout} boxes @param {number} i */
function box(ctx, boxes, i) {
  const gap = boxes.width[i] > 3 ? GAP : 0;
  ctx.rect(boxes.x[i], boxes.row[i] * ROW, boxes.width[i] - gap, ROW - GAP);
}

/** Nodes too thin for a box: a strip of lines. @param {CanvasRenderingContext2D} ctx @param {Scene} scene */
function drawThin(ctx, { boxes, palette }) {
  ctx.strokeStyle = palette.evictable;
  ctx.beginPath();
  for (let i = 0; i < boxes.count; i += 1) {
    if (boxes.node[i]) continue;
    const y = boxes.row[i] * ROW;
    for (let x = boxes.x[i] + 0.5; x < boxes.x[i] + boxes.width[i]; x += 3) {
      ctx.moveTo(x, y);
      ctx.lineTo(x, y + ROW - GAP);
    }
  }
  ctx.stroke();
}

/** What colours say is also said by marks: a bar below what is held, a bar above what was hit, a frame of
 * dashes where one waits, dots on what is being computed. @param {CanvasRenderingContext2D} ctx @param {Scene} scene */
function drawMarks(ctx, scene) {
  const { boxes, palette } = scene;
  ctx.fillStyle = palette.text;
  for (let i = 0; i < boxes.count; i += 1) {
    const node = boxes.node[i];
    if (!node || boxes.width[i] < 2) continue;
    const state = stateOf(node, scene.since);
    const y = boxes.row[i] * ROW;
    if (state === 'locked') ctx.fillRect(boxes.x[i], y + ROW - GAP - 3, boxes.width[i] - GAP, 3);
    else if (state === 'hit') ctx.fillRect(boxes.x[i], y, boxes.width[i] - GAP, 2);
    else if (state === 'computing') {
      for (let x = boxes.x[i] + 2; x < boxes.x[i] + boxes.width[i] - 2; x += 6) ctx.fillRect(x, y + ROW - GAP - 3, 2, 2);
    } else if (state === 'wanted') {
      for (let x = boxes.x[i]; x < boxes.x[i] + boxes.width[i] - 4; x += 8) ctx.fillRect(x, y, 4, 3);
    }
    if (scene.marked.has(node[UID]) || scene.under === node[UID]) {
      ctx.strokeStyle = scene.marked.has(node[UID]) ? palette.accent : palette.text;
      ctx.lineWidth = 2;
      ctx.strokeRect(boxes.x[i] + 1, y + 1, Math.max(1, boxes.width[i] - 3), ROW - 3);
      ctx.lineWidth = 1;
    }
  }
}

/** @param {CanvasRenderingContext2D} ctx @param {Scene} scene */
function drawLabels(ctx, scene) {
  const { boxes, palette } = scene;
  ctx.fillStyle = palette.text;
  ctx.font = '12px system-ui, sans-serif';
  ctx.textBaseline = 'middle';
  for (let i = 0; i < boxes.count; i += 1) {
    const node = boxes.node[i];
    const width = boxes.width[i];
    if (!node || width < LABEL_FROM) continue;
    const known = scene.labels.get(nameOf(scene.replica, node));
    const most = Math.floor(width / 6.5) - 1;
    const label = known ? `${node[TOKENS]} · ${visible(known.slice(0, most)).replace(/\s/g, ' ')}` : String(node[TOKENS]);
    ctx.save();
    ctx.beginPath();
    ctx.rect(boxes.x[i], boxes.row[i] * ROW, width - 4, ROW);
    ctx.clip();
    ctx.fillText(label.slice(0, most), boxes.x[i] + 4, boxes.row[i] * ROW + ROW / 2 - 1);
    ctx.restore();
  }
}

/** @param {CanvasRenderingContext2D} ctx @param {Scene} scene @param {number} now */
function drawGhosts(ctx, scene, now) {
  scene.ghosts = scene.ghosts.filter((each) => now - each.at < FADE_MS);
  ctx.fillStyle = scene.palette.evicted;
  for (const ghost of scene.ghosts) {
    ctx.globalAlpha = Math.max(0, 1 - (now - ghost.at) / FADE_MS);
    ctx.fillRect(ghost.x, ghost.row * ROW, Math.max(1, ghost.width - GAP), ROW - GAP);
  }
  ctx.globalAlpha = 1;
  return scene.ghosts.length > 0;
}
