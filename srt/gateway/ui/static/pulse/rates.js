/** Figures of each moment, from the differences of counters. */

/** @typedef {import('../types.js').Pulse} Pulse */

const SOURCES = ['own', 'tree', 'seen', 'prediction'];
const STEPS = ['decode', 'verify', 'prefill', 'mixed'];
const WINDOW = 4; // pulses back that a rate is taken over

/** @param {Pulse} pulse @param {string} name */
function total(pulse, name) {
  let sum = 0;
  for (const replica of pulse.replicas) sum += replica[name] ?? 0;
  return sum;
}

/** @param {Pulse} pulse @param {string} name */
function bySource(pulse, name) {
  return SOURCES.reduce((sum, source) => sum + total(pulse, `${name}_${source}_total`), 0);
}

/**
 * @typedef {Record<string, (number | null)[]>} Rates  by name, one for each pulse; null where nothing is known
 * @param {Pulse[]} pulses
 * @returns {Rates}
 */
export function ratesOf(pulses) {
  /** @type {Rates} */
  const rates = { t: [] };
  pulses.forEach((pulse, index) => {
    for (const [name, value] of Object.entries(moment(pulse, pulses[Math.max(0, index - WINDOW)]))) (rates[name] ??= []).push(value);
  });
  return rates;
}

/** @param {Pulse} now @param {Pulse} before @returns {Record<string, number | null>} */
function moment(now, before) {
  const seconds = now.t - before.t;
  const isKnown = now.replicas.length > 0 && before.replicas.length === now.replicas.length && seconds > 0;
  // A counter that has fallen: a scheduler has started anew.
  const gained = (/** @type {(pulse: Pulse) => number} */ count) => {
    const gain = count(now) - count(before);
    return isKnown && gain >= 0 ? gain : null;
  };
  const rate = (/** @type {string} */ name) => per(gained((pulse) => total(pulse, name)), seconds);
  const prompt = gained((pulse) => total(pulse, 'prompt_tokens_total'));
  const cached = gained((pulse) => total(pulse, 'cached_tokens_total'));
  const forward = gained((pulse) => total(pulse, 'forward_seconds_total'));
  const exposed = gained((pulse) => total(pulse, 'exposed_seconds_total'));
  const ms = (/** @type {number | undefined} */ value) => (value === undefined ? null : 1000 * value);
  const gauge = (/** @type {string} */ name) => (now.replicas.length ? total(now, name) : null);
  return {
    t: now.t,
    generated: rate('generation_tokens_total'),
    computed: rate('computed_prompt_tokens_total'),
    cached: per(cached, seconds),
    hit: share(cached, prompt),
    ttft50: ms(now.latency.ttft_s?.[0]),
    ttft99: ms(now.latency.ttft_s?.[1]),
    itl50: ms(now.latency.itl_s?.[0]),
    itl99: ms(now.latency.itl_s?.[1]),
    running: gauge('num_running_reqs'),
    waiting: gauge('num_queue_reqs'),
    used: gauge('num_used_tokens'),
    kept: gauge('num_cached_tokens'),
    free: gauge('num_free_tokens'),
    exposed: share(exposed, exposed === null || forward === null ? null : exposed + forward),
    jumped: rate('jump_forward_tokens_total'),
    guessed: per(gained((pulse) => bySource(pulse, 'drafted_tokens')), seconds),
    accepted: per(gained((pulse) => bySource(pulse, 'accepted_draft_tokens')), seconds),
    evicted: rate('evicted_tokens_total'),
    ...Object.fromEntries(STEPS.map((kind) => [`${kind}_steps`, rate(`${kind}_steps_total`)])),
  };
}

/** @param {number | null} gain @param {number} seconds */
function per(gain, seconds) {
  return gain === null ? null : gain / seconds;
}

/** In percent. @param {number | null} part @param {number | null} whole */
function share(part, whole) {
  return part === null || !whole ? null : (100 * part) / whole;
}
