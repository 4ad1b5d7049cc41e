/** What stands where in a run: lanes, what waited for what, and the chain that its time has gone by. */

/** @typedef {import('../types.js').Step} Step */

const SLACK_S = 0.005; // clocks of one machine

/** The lane of a call: its address without its own number. @param {Step} step */
export function laneOf(step) {
  return step.id.slice(0, step.id.lastIndexOf('/'));
}

/** A lane in words. @param {string} lane */
export function laneTitle(lane) {
  const [row, ...path] = lane.split('/');
  const start = row === '0' ? 'main' : `row ${row}`;
  return path.length ? path.map((step) => step.replace(/^([a-z]+)(\d+)\.(\d+)$/, '$1 $2, child $3').replace(/^([a-z]+)(\d+)$/, '$1 $2')).join(' › ') : start;
}

/**
 * The lanes in the order of their addresses, each with its calls by their start.
 * @param {Iterable<Step>} steps
 * @returns {[string, Step[]][]}
 */
export function lanesOf(steps) {
  /** @type {Map<string, Step[]>} */
  const lanes = new Map();
  for (const step of steps) {
    const lane = laneOf(step);
    const found = lanes.get(lane);
    if (found) found.push(step);
    else lanes.set(lane, [step]);
  }
  for (const found of lanes.values()) found.sort((a, b) => a.t0 - b.t0);
  return [...lanes].sort(([a], [b]) => a.localeCompare(b, 'en', { numeric: true }));
}

/**
 * The calls that one waited for, as far as they are known. In the place of one that goes on around it, such as the
 * tool that it is a part of, those that this waited for.
 * @param {Step} step
 * @param {Map<string, Step>} byId
 * @returns {Step[]}
 */
export function waitedFor(step, byId) {
  const found = new Set();
  const seen = new Set([step.id]);
  const left = [...step.after];
  for (let id = left.pop(); id !== undefined; id = left.pop()) {
    const before = byId.get(id);
    if (!before || seen.has(id)) continue;
    seen.add(id);
    if (before.t1 !== null && before.t1 <= step.t0 + SLACK_S) found.add(before);
    else left.push(...before.after);
  }
  return [...found];
}

/**
 * The critical path: from the call that ended last back through the last of those that each had to wait for.
 * @param {Step[]} steps
 * @returns {Step[]}
 */
export function criticalPath(steps) {
  const byId = new Map(steps.map((step) => [step.id, step]));
  const path = [];
  const seen = new Set(); // who reports may say anything
  for (let step = lastOf(steps); step && !seen.has(step.id); step = lastOf(waitedFor(step, byId))) {
    seen.add(step.id);
    path.unshift(step);
  }
  return path;
}

/** The one that ended last. @param {Step[]} steps @returns {Step | undefined} */
function lastOf(steps) {
  let last;
  for (const step of steps) if (step.t1 !== null && (!last || step.t1 > /** @type {number} */ (last.t1))) last = step;
  return last;
}

/**
 * What leads from one lane to another, as pairs of calls: forks, joins, values that were read.
 * @param {Step[]} steps
 * @returns {[Step, Step][]}
 */
export function connectors(steps) {
  const byId = new Map(steps.map((step) => [step.id, step]));
  /** @type {[Step, Step][]} */
  const pairs = [];
  for (const step of steps) {
    for (const before of waitedFor(step, byId)) if (laneOf(before) !== laneOf(step)) pairs.push([before, step]);
  }
  return pairs;
}

/**
 * The call that an arrow key leads to: the one before or after in its lane, or the nearest in time of the lane above
 * or below.
 * @param {[string, Step[]][]} lanes
 * @param {string} id
 * @param {string} key
 * @returns {Step | undefined}
 */
export function neighbour(lanes, id, key) {
  const row = lanes.findIndex(([, steps]) => steps.some((step) => step.id === id));
  if (row < 0) return undefined;
  const steps = lanes[row][1];
  const at = steps.findIndex((step) => step.id === id);
  if (key === 'ArrowRight') return steps[at + 1];
  if (key === 'ArrowLeft') return steps[at - 1];
  if (key === 'Home') return steps[0];
  if (key === 'End') return steps[steps.length - 1];
  const other = key === 'ArrowUp' ? lanes[row - 1] : key === 'ArrowDown' ? lanes[row + 1] : undefined;
  const distance = (/** @type {Step} */ step) => Math.abs(step.t0 - steps[at].t0);
  return other?.[1].reduce((best, step) => (distance(step) < distance(best) ? step : best));
}
