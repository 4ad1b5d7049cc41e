/** Lines from lane to lane, from where a call ended to where one began that had waited for it. */

import { connectors } from './lanes.js';

/** @typedef {import('../types.js').Step} Step */

const SVG = 'http://www.w3.org/2000/svg';
const MOST = 400; // lines; those of the critical path come first

/**
 * Draws them over the tracks of the lanes, which are in the document.
 * @param {HTMLElement} lanes
 * @param {Step[]} steps
 * @param {number} end  seconds that a track is wide
 * @param {Set<string>} path
 */
export function drawWires(lanes, steps, end, path) {
  lanes.querySelector('svg')?.remove();
  const area = lanes.getBoundingClientRect();
  /** @type {Map<string, DOMRect>} */
  const boxes = new Map();
  for (const bar of lanes.querySelectorAll('[data-step]')) {
    const track = /** @type {HTMLElement} */ (bar.parentElement);
    boxes.set(bar.getAttribute('data-step') ?? '', track.getBoundingClientRect());
  }
  const isCritical = (/** @type {[Step, Step]} */ [from, to]) => path.has(from.id) && path.has(to.id);
  const pairs = connectors(steps).sort((a, b) => Number(isCritical(b)) - Number(isCritical(a))).slice(0, MOST);
  const svg = document.createElementNS(SVG, 'svg');
  svg.setAttribute('aria-hidden', 'true');
  for (const pair of pairs.reverse()) {
    const [from, to] = pair.map((step) => boxes.get(step.id));
    if (!from || !to) continue;
    const x1 = from.left - area.left + (from.width * (pair[0].t1 ?? 0)) / end;
    const x2 = to.left - area.left + (to.width * pair[1].t0) / end;
    const y1 = from.top - area.top + from.height / 2;
    const y2 = to.top - area.top + to.height / 2;
    const line = document.createElementNS(SVG, 'path');
    line.setAttribute('d', `M${x1} ${y1}C${x1 + 8} ${y1} ${x2 - 8} ${y2} ${x2} ${y2}`);
    if (isCritical(pair)) line.setAttribute('class', 'critical');
    svg.append(line);
  }
  lanes.append(svg);
}
