/** Tokens one by one: how likely each was, where it is from, and what else might have stood there. */

import { el, freshId, visible } from '../dom.js';

const MOST_TOKENS = 3000; // shown one by one
const ORIGINS = { j: 'forced by the constraint', d: 'guessed, and right', c: 'appended to close the output', s: 'sampled' };
const APPENDED = ['j', 'c']; // origins of what nobody has chosen: its probability tells nothing

/**
 * @typedef {object} Token
 * @property {string} token
 * @property {number | null} logprob  without the constraint, as those of `top`
 * @property {[string, number][]} top
 * @property {string} origin  a letter of ORIGINS
 */

/** The tokens of a text. */
export class TokenList {
  /** @param {boolean} isConstrained */
  constructor(isConstrained) {
    this.isConstrained = isConstrained;
    this.tail = document.createTextNode('');
    this.root = el('div', { class: 'tokens mono', attrs: { role: 'group', 'aria-label': 'Tokens; arrow keys go from one to the next' } }, this.tail);
    this.settled = ''; // the text of the tokens
    this.root.addEventListener('keydown', (event) => move(this.root, event));
  }

  /** @param {Token[]} tokens  those that are shown, and new ones @param {string} text */
  draw(tokens, text) {
    const fragment = document.createDocumentFragment();
    for (let i = this.root.childElementCount; i < Math.min(tokens.length, MOST_TOKENS); i += 1) {
      fragment.append(tokenElement(tokens[i], i === 0, this.isConstrained));
      this.settled += tokens[i].token;
    }
    this.root.insertBefore(fragment, this.tail);
    // Text that is sent before its tokens are settled: a constraint may divide it otherwise.
    this.tail.data = visible(text.startsWith(this.settled) ? text.slice(this.settled.length) : '');
  }
}

/** @param {any} choice  of a stream's chunk @returns {Token[]} */
export function tokensOf(choice) {
  const origins = choice.token_origins ?? '';
  const found = choice.logprobs;
  if (!found) return [];
  if (found.content) {
    return found.content.map((/** @type {any} */ each, /** @type {number} */ index) => ({
      token: each.token,
      logprob: each.logprob,
      top: each.top_logprobs.map((/** @type {any} */ other) => [other.token, other.logprob]),
      origin: origins[index] ?? 's',
    }));
  }
  return found.tokens.map((/** @type {string} */ token, /** @type {number} */ index) => ({
    token,
    logprob: found.token_logprobs[index],
    top: Object.entries(found.top_logprobs?.[index] ?? {}),
    origin: origins[index] ?? 's',
  }));
}

/** @param {Token} token @param {boolean} isFirst @param {boolean} isConstrained */
function tokenElement(token, isFirst, isConstrained) {
  const chance = token.logprob === null ? 1 : Math.exp(token.logprob);
  const isAppended = APPENDED.includes(token.origin);
  const shade = isAppended ? '' : ` p${Math.min(9, Math.floor(chance * 10))}`;
  const facts = isAppended ? originOf(token) : percent(chance);
  const attrs = { tabindex: isFirst ? 0 : -1, 'data-origin': token.origin, role: 'button', 'aria-label': `${token.token}, ${facts}` };
  const made = el('span', { class: `token${shade} from-${token.origin}`, attrs }, visible(token.token));
  for (const name of ['pointerenter', 'focus']) made.addEventListener(name, () => showTip(made, token, chance, isConstrained));
  for (const name of ['pointerleave', 'blur']) made.addEventListener(name, hideTip);
  return made;
}

/** @param {Token} token */
function originOf(token) {
  return ORIGINS[/** @type {keyof typeof ORIGINS} */ (token.origin)] ?? token.origin;
}

/** @param {HTMLElement} list @param {KeyboardEvent} event */
function move(list, event) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  const now = /** @type {HTMLElement} */ (event.target);
  if (event.key === 'Escape') hideTip();
  if (!step) return;
  const next = /** @type {HTMLElement | null} */ (step > 0 ? now.nextElementSibling : now.previousElementSibling);
  if (!next) return;
  event.preventDefault();
  now.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

const tip = el('div', { class: 'tip panel', attrs: { role: 'tooltip', id: freshId('tip') } });
tip.hidden = true;

/** @param {HTMLElement} at @param {Token} token @param {number} chance @param {boolean} isConstrained */
function showTip(at, token, chance, isConstrained) {
  const isAppended = APPENDED.includes(token.origin);
  const origin = originOf(token);
  const caption = !isConstrained ? 'Likeliest here' : isAppended ? 'Likeliest without the constraint' : 'Likeliest without the constraint, which may forbid some';
  tip.replaceChildren(
    el('p', { class: 'mono text' }, visible(JSON.stringify(token.token))),
    el('p', {}, isAppended ? `${origin}; ${percent(chance)} without it` : `${percent(chance)}, ${origin}`),
    el('table', {}, el('caption', {}, caption), el('tbody', {}, ...token.top.map((each) => topRow(each, token, isAppended)))),
  );
  tip.hidden = false;
  at.setAttribute('aria-describedby', tip.id);
  (at.closest('section') ?? document.body).append(tip);
  const place = at.getBoundingClientRect();
  const size = tip.getBoundingClientRect();
  const left = Math.max(8, Math.min(place.left, innerWidth - size.width - 8));
  const below = place.bottom + 6 + size.height < innerHeight;
  tip.style.left = `${left}px`;
  tip.style.top = `${below ? place.bottom + 6 : Math.max(4, place.top - size.height - 6)}px`;
}

/**
 * Where a text was appended nothing else was possible, except the same text in other tokens.
 * @param {[string, number]} top
 * @param {Token} token
 * @param {boolean} isAppended
 */
function topRow([text, logprob], token, isAppended) {
  const isPossible = !isAppended || token.token.startsWith(text) || text.startsWith(token.token);
  const cells = [el('td', { class: 'mono text' }, visible(JSON.stringify(text))), el('td', { class: 'number' }, percent(Math.exp(logprob)))];
  return el('tr', { class: isPossible ? undefined : 'barred' }, ...cells, isAppended ? el('td', {}, isPossible ? '' : 'not allowed') : null);
}

function hideTip() {
  tip.hidden = true;
}

/** @param {number} chance */
function percent(chance) {
  return chance >= 0.0995 ? `${Math.round(chance * 100)} %` : `${(chance * 100).toPrecision(2)} %`;
}

/** The prompt's tokens, with those from the cache marked. @param {string[]} strs @param {number} cached */
export function promptTokens(strs, cached) {
  const shown = strs.slice(0, MOST_TOKENS).map((text, index) => el('span', { class: index < cached ? 'token from-cache' : 'token' }, visible(text)));
  const more = strs.length > MOST_TOKENS ? ` … ${strs.length - MOST_TOKENS} more` : '';
  const summary = `Prompt: ${cached} of ${strs.length} tokens from the cache`;
  return el('details', { class: 'prompt' }, el('summary', {}, summary), el('div', { class: 'tokens mono text' }, ...shown, more));
}
