/**
 * Types that several modules share; nothing runs here.
 *
 * @typedef {object} Context
 * @property {import('./keys.js').Keys} keys
 * @property {import('./feed.js').Feed} feed
 * @property {(text: string) => void} announce  says it to screen readers
 *
 * @typedef {{shown(): void, hidden(): void}} View
 *
 * A node of the radix tree: uid, parent (0: top), start, tokens, locks, number of its last match (-1: a
 * waiting request is going to match it), matches since it was made, tokens in and below it, salt.
 * @typedef {[number, number, number, number, number, number, number, number, number]} Node
 *
 * @typedef {object} Req
 * @property {string} rid
 * @property {number} prompt
 * @property {number} output
 * @property {number} age_s
 * @property {boolean} constrained
 * @property {'prefill' | 'decode' | 'waiting'} state
 * @property {number} computed
 * @property {number} cached
 * @property {number} node  where its cached prefix ends; 0: nowhere
 * @property {string} [why]
 *
 * @typedef {object} Queue
 * @property {number} t
 * @property {Req[]} running
 * @property {Req[]} waiting
 * @property {number} num_running
 * @property {number} num_waiting
 *
 * @typedef {object} Part
 * @property {string} name
 * @property {string} state
 * @property {number | null} cpu
 * @property {number | null} rss
 * @property {number} losses
 *
 * @typedef {object} Pulse
 * @property {number} t
 * @property {Record<string, number>[]} replicas
 * @property {{ttft_s: [number, number] | null, itl_s: [number, number] | null}} latency
 * @property {Part[]} parts
 *
 * @typedef {object} Hello
 * @property {string} model
 * @property {string} version
 * @property {number} context_len
 * @property {number} pool_tokens
 * @property {number} replicas
 * @property {number} epoch
 * @property {number[]} incarnations
 * @property {number} launcher  its process: another one is another server
 *
 * A call of a program; see srt/gateway/wire/runs.py.
 * @typedef {object} Step
 * @property {string} id  where it stands, for instance `0/fork1.2/3`: call 3 of child 2 of fork 1 of row 0
 * @property {string} kind
 * @property {string} name
 * @property {number} t0
 * @property {number | null} t1
 * @property {string[]} after  the calls that it had to wait for
 * @property {number} prompt_tokens
 * @property {number} cached_tokens
 * @property {number} completion_tokens
 * @property {string} prompt  its end
 * @property {string} text
 * @property {string | null} error
 * @property {boolean} from_log
 * @property {boolean} is_shared
 *
 * @typedef {object} Run
 * @property {string} run
 * @property {string} name
 * @property {number} started
 * @property {number | null} ended
 * @property {number} cut  steps that were too many to keep
 * @property {number} heard  when it was last told of (Unix time of the server)
 * @property {Map<string, Step>} steps
 */

export {};
