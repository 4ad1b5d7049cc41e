/** What stands where in a run: lanes, and the chain of calls that its time has gone by. */

/** @typedef {import('../types.js').Step} Step */

const SLACK_S = 0.005; // between the end of a call and the start of the one that waited for it

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

/** Whether one lane is the other, or below it. @param {string} a @param {string} b */
function related(a, b) {
  return a === b || a.startsWith(`${b}/`) || b.startsWith(`${a}/`);
}

/**
 * The critical path: from the call that ended last back through those that each had to wait for, which are the
 * last to have ended before it began, in its own lane, above or below it.
 * @param {Step[]} steps
 * @returns {Step[]}
 */
export function criticalPath(steps) {
  const ended = steps.filter((step) => step.t1 !== null).sort((a, b) => /** @type {number} */ (b.t1) - /** @type {number} */ (a.t1));
  const path = ended.slice(0, 1);
  for (const step of ended) {
    const next = path[0];
    if (next && step !== next && /** @type {number} */ (step.t1) <= next.t0 + SLACK_S && related(laneOf(step), laneOf(next))) path.unshift(step);
  }
  return path;
}
