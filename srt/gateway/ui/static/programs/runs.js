/** What is said of a run as a whole. */

/** @typedef {import('../types.js').Run} Run */

const SILENT_S = 60; // after which a run that has not ended may have been killed

/**
 * How long it has taken, and whether it goes on: a process that was killed reports no end.
 * @param {Run} run
 * @param {number} now  the server's Unix time
 * @returns {{state: 'ended' | 'running' | 'silent', took: number}}
 */
export function progress(run, now) {
  let last = 0;
  for (const step of run.steps.values()) last = Math.max(last, step.t1 ?? step.t0);
  if (run.ended !== null) return { state: 'ended', took: Math.max(last, run.ended - run.started) };
  const quiet = now - run.heard;
  const took = Math.max(last, Math.min(now, run.heard + SILENT_S) - run.started);
  return { state: quiet > SILENT_S ? 'silent' : 'running', took };
}

/**
 * Sums over its calls.
 * @param {Run} run
 * @returns {{prompt: number, cached: number, made: number, failed: number, share: number}}
 */
export function sums(run) {
  const sum = { prompt: 0, cached: 0, made: 0, failed: 0, share: 0 };
  for (const step of run.steps.values()) {
    sum.prompt += step.prompt_tokens;
    sum.cached += step.cached_tokens;
    sum.made += step.completion_tokens;
    sum.failed += step.error === null ? 0 : 1;
  }
  sum.share = sum.prompt ? Math.round((100 * sum.cached) / sum.prompt) : 0;
  return sum;
}

/** The newest first. @param {Iterable<Run>} runs @returns {Run[]} */
export function newestFirst(runs) {
  return [...runs].sort((a, b) => b.started - a.started);
}
