// The viewer's page. Whatever came out of a run reaches the document as text nodes and as values of
// a few harmless attributes: nodes are made by `el` alone, and nothing here parses markup (the
// page's policy would refuse it).
"use strict";

const FACETS = {
  outcome: "Outcome", policy: "Policy", fault: "Fault", family: "Family", domain: "Domain",
  task: "Task", wrapper: "Wrapper", design: "Design", label: "Evidence label", key: "Key",
  decision: "Decision", kind: "Kind", signs: "Answers",
};
const ALWAYS = new Set(["outcome", "policy", "fault"]);
const BADGES = {
  exactly_once: ["good", "✓", "exactly once"], strict: ["good", "✓", "strict"], duplicated: ["bad", "×", "duplicated"],
  omitted: ["bad", "○", "omitted"], unresolved: ["warn", "?", "unresolved"],
  overclaim: ["bad", "!", "overclaim"], missing: ["", "–", "missing"],
  not_triggered: ["", "∅", "not triggered"], unreadable: ["warn", "–", "invalid answer"],
  not_permitted: ["bad", "!", "retry not permitted"],
  business_effects: ["bad", "×", "business effects"], final_delivery: ["warn", "×", "final delivery"],
  authorisation_binding: ["bad", "×", "authorisation, binding"], recovery: ["bad", "×", "recovery"],
};
const GROUPS = { policy: "fault", agent: "fault", case: "family", probe: "question" };
const TRUTHS = {
  policy: ["Timeline", "Timeline of the world"], agent: ["Timeline", "Timeline of the world"],
  case: ["Ledger", "What the services did"], probe: ["Worlds", "The decision in three hidden worlds"],
};
const ROLES = { task: "Task", trouble: "Provider trouble" };
const ATTRIBUTES = new Set([
  "aria-controls", "aria-expanded", "aria-hidden", "aria-label", "colspan", "data-key", "data-link",
  "data-place", "disabled", "hidden", "href", "role", "scope", "tabindex", "title", "type",
]);
const POLL_MS = 5000;
const CLIP = 1200;

const $ = (id) => document.getElementById(id);
const number = (x) => Number(x).toLocaleString("en", { maximumFractionDigits: 3 });
const plural = (n, word) => `${number(n)} ${word}${n === 1 ? "" : "s"}`;
const params = () => new URLSearchParams(location.search);

const shown = { version: -1, place: null, list: null };  // what is on the screen
let routed = null;         // the address that it belongs to
let asked = 0;             // number of the latest question
let scrolled = 0;          // of the list
let cameFromList = false;  // so that the way back is the browser's own
let reading = false;       // whether the server is being asked to read on
let searchNext = false;    // whether the search gets the focus once the list is back
let last = null;           // the episode that was looked at last
let lastOffset = null;     // the page of the list that it is on

// --- making nodes ---------------------------------------------------------------------------------

function el(tag, props, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") node.className = value;
    else if (name === "on") for (const [kind, act] of Object.entries(value)) node.addEventListener(kind, act);
    else if (!ATTRIBUTES.has(name) || (name === "href" && !value.startsWith("#"))) throw new Error(name);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter(Boolean));
  return node;
}

// A name that may be broken after its underscores.
function nameOf(text) {
  return text.split("_").flatMap((part, k) => k ? ["_", el("wbr"), part] : [part]);
}

function textOf(text, kind = "", limit = CLIP) {
  const body = el("pre", { class: `text ${kind}` }, text);
  if (text.length <= limit * 1.25) return body;
  body.textContent = `${text.slice(0, limit)}…`;
  const more = el("button", { type: "button", class: "plain small", "aria-expanded": "false", on: { click() {
    const open = more.getAttribute("aria-expanded") === "true";
    body.textContent = open ? `${text.slice(0, limit)}…` : text;
    more.textContent = open ? `Show all ${number(text.length)} characters` : "Show less";
    more.setAttribute("aria-expanded", String(!open));
  } } }, `Show all ${number(text.length)} characters`);
  return el("div", {}, body, more);
}

function badgesOf(row) {
  const counts = { duplicated: row.duplicates, omitted: row.omissions };
  const found = row.outcomes.map((name) => {
    const [tone, sign, words] = BADGES[name];
    const many = counts[name] > 1;
    return el("span", { class: `badge ${tone}` }, el("span", { "aria-hidden": !many }, many ? `${counts[name]}×` : sign), words);
  });
  const signs = [];
  if (row.invalid && row.kind !== "probe") signs.push(plural(row.invalid, row.kind === "case" ? "invalid request" : "invalid answer"));
  if (row.provider_errors) signs.push(plural(row.provider_errors, "provider error"));
  if (signs.length) found.push(el("span", { class: "signs" }, signs.join(", ")));
  return el("span", { class: "badges" }, ...found);
}

const titled = (word) => word[0].toUpperCase() + word.slice(1);

function secondsText(s) {
  return `${number(Math.round(s * 1000) / 1000)} s`;
}

function longText(s) {
  if (s < 120) return "";
  const all = Math.round(s), h = Math.floor(all / 3600), m = Math.floor((all % 3600) / 60);
  return [h && `${h} h`, m && `${m} min`, !h && all % 60 && `${all % 60} s`].filter(Boolean).join(" ");
}

function usdText(usd) {
  if (!usd) return "–";
  return `$${usd >= 1 ? usd.toFixed(2) : Number(usd.toPrecision(2)).toFixed(Math.min(8, 1 - Math.floor(Math.log10(usd)))) }`;
}

function factsOf(pairs) {
  return el("dl", { class: "facts" }, ...pairs.map(([name, value]) =>
    el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

// --- asking the server ----------------------------------------------------------------------------

async function ask(path) {
  let response;
  try {
    response = await fetch(path);
  } catch {
    throw new Error("The viewer has ended. Start it again with: exactlyonce view RUN");
  }
  const found = await response.json();
  if (!response.ok) throw Object.assign(new Error(found.error), { status: response.status });
  return found;
}

function complain(error) {
  $("alert").textContent = error ? error.message : "";
  $("alert").hidden = !error;
}

// --- the list -------------------------------------------------------------------------------------

async function loadList() {
  const question = ++asked;
  try {
    const found = await ask(`/api/episodes?${params()}`);
    if (question !== asked || placeOf()) return;
    complain(null);
    showList(found);
    if (found.state.indexed < found.state.total) readOn();
  } catch (error) {
    if (question === asked) complain(error);
  }
}

// Lets the server read the rest of a large run; the list is shown anew once it has.
async function readOn() {
  if (reading) return;
  reading = true;
  try {
    for (let state = null; !state || state.indexed < state.total;) {
      state = await ask("/api/state");
      $("reading").textContent = `reading ${number(state.indexed)} of ${number(state.total)}`;
    }
  } catch (error) {
    complain(error);
  } finally {
    reading = false;
    $("reading").textContent = "";
  }
  if (!placeOf()) loadList();
}

function showList(found) {
  const kept = document.activeElement && document.activeElement.dataset.key;
  shown.version = found.state.version;
  shown.list = found;
  nameRun(found.run);
  showFilters(found.facets);
  const { episodes, tokens_in, tokens_out, usd } = found.totals;
  const words = [plural(episodes, "episode")];
  if (tokens_in + tokens_out) words.push(`${number(tokens_in)} tokens in, ${number(tokens_out)} out`);
  if (usd) words.push(usdText(usd));
  const line = words.join(" · ");
  if ($("count").textContent !== line) $("count").textContent = line;
  const groups = new Set(found.rows.map((row) => GROUPS[row.kind]));
  $("group").textContent = groups.size === 1 ? titled([...groups][0]) : "Fault";
  const rows = found.rows.map(rowOf);
  if (!rows.length) rows.push(el("tr", { role: "row" }, el("td", { role: "cell", class: "nothing", colspan: "8" },
    found.state.total ? "No episode fits these filters." : "No episode has ended yet; this page shows them as they do.")));
  $("rows").replaceChildren(...rows);
  showPager(found);
  if (kept) {
    const again = document.querySelector(`[data-key=${CSS.escape(kept)}]`);
    if (again) again.focus({ preventScroll: true });
  }
}

function rowOf(row) {
  const cell = (kind, ...children) => el("td", { role: "cell", class: kind }, ...children);
  const did = row.reason || row.did;
  return el("tr", { role: "row", class: row.place === last ? "seen-last" : "" },
    cell("of-title", el("a", { href: `#${encodeURIComponent(row.place)}`, "data-key": `row:${row.place}`, "data-place": row.place }, ...nameOf(row.title)),
      row.subtitle && el("div", { class: "sub" }, row.subtitle)),
    cell("of-policy", el("span", { class: "mono" }, row.policy), wrapperOf(row) && el("div", { class: "sub" }, wrapperOf(row))),
    cell("of-fault", ...nameOf(row.group)),
    cell("of-outcome", badgesOf(row)),
    cell("of-did what", el("span", { title: did }, did)),
    cell("number", number(row.calls)),
    cell("number", number(row.tokens_in + row.tokens_out)),
    cell("number", usdText(row.usd)));
}

function wrapperOf(row) {
  return row.wrapper && row.wrapper !== "none" ? `wrapper ${row.wrapper}` : "";
}

function showFilters(facets) {
  const chosen = params();
  let active = 0;
  const sets = [];
  for (const { facet, values } of facets) {
    const here = new Set(chosen.getAll(facet));
    active += here.size;
    const known = new Set(values.map((entry) => entry.value));
    const all = [...values, ...[...here].filter((v) => !known.has(v)).map((v) => ({ value: v, words: v, count: 0 }))];
    const some = facet === "signs" ? all.some((entry) => entry.count) : all.length > 1;
    if (!all.length || !(ALWAYS.has(facet) || some || here.size)) continue;
    sets.push(el("fieldset", {}, el("legend", {}, FACETS[facet]), el("div", { class: "values" }, ...all.map((entry) => {
      const box = el("input", { type: "checkbox", "data-key": `filter:${facet}:${entry.value}`, on: { change() {
        change((p) => {
          const rest = p.getAll(facet).filter((value) => value !== entry.value);
          p.delete(facet);
          for (const value of rest) p.append(facet, value);
          if (box.checked) p.append(facet, entry.value);
        });
      } } });
      box.checked = here.has(entry.value);
      return el("label", { class: entry.count ? "" : "none" }, box, el("span", { class: "word" }, ...nameOf(entry.words)),
        el("span", { class: "n" }, number(entry.count)));
    }))));
  }
  $("toggle").textContent = active ? `Filters (${active})` : "Filters";
  if (active || chosen.get("q")) {
    sets.unshift(el("p", {}, el("button", { type: "button", "data-key": "clear", on: { click() {
      $("search").value = "";
      change((p) => { for (const name of [...Object.keys(FACETS), "q"]) p.delete(name); });
    } } }, "Clear all filters")));
  }
  const places = new Map([...$("filters").querySelectorAll(".values")].map((box) => [box.previousSibling.textContent, box.scrollTop]));
  $("filters").replaceChildren(...sets);
  for (const box of $("filters").querySelectorAll(".values")) box.scrollTop = places.get(box.previousSibling.textContent) || 0;
}

function showPager({ offset, page, totals, rows }) {
  const to = (start, focus) => change((p) => start ? p.set("offset", start) : p.delete("offset"), true, focus);
  const pages = Math.max(1, Math.ceil(totals.episodes / page)), here = Math.floor(offset / page) + 1;
  if (pages === 1) {
    $("pager").replaceChildren();
    return;
  }
  $("pager").replaceChildren(
    el("button", { type: "button", "data-key": "first", disabled: here === 1, on: { click: () => to(0) } }, "First"),
    el("button", { type: "button", "data-key": "before", disabled: here === 1, on: { click: () => to(offset - page) } }, "Previous"),
    el("span", {}, `${number(offset + 1)}–${number(offset + rows.length)} of ${number(totals.episodes)}`),
    el("button", { type: "button", "data-key": "after", disabled: here === pages, on: { click: () => to(offset + page) } }, "Next"),
    el("button", { type: "button", "data-key": "last", disabled: here === pages, on: { click: () => to((pages - 1) * page) } }, "Last"));
}

// Puts filters into the address of the list.
function readdress(p) {
  const text = p.toString();
  history.replaceState(null, "", location.pathname + (text ? `?${text}` : ""));
  routed = location.href;
}

// Changes the filters, and shows what they leave.
async function change(edit, keepPage = false, focus = null) {
  const p = params();
  if (!keepPage) p.delete("offset");
  edit(p);
  readdress(p);
  await loadList();
  if (keepPage) scrollTo({ top: 0, behavior: "instant" });
  const links = rowLinks();
  if (focus && links.length) links[focus === "first" ? 0 : links.length - 1].focus();
}

const rowLinks = () => [...$("rows").querySelectorAll("a")];

function step(by) {
  const links = rowLinks();
  const at = links.indexOf(document.activeElement);
  const to = at < 0 ? Math.max(0, links.findIndex((link) => link.dataset.place === last)) : at + by;
  const { offset, page, totals } = shown.list || { offset: 0, page: 1, totals: { episodes: 0 } };
  if (to < 0 && offset > 0) change((p) => p.set("offset", offset - page), true, "last");
  else if (to >= links.length && offset + page < totals.episodes) change((p) => p.set("offset", offset + page), true, "first");
  else if (links[to]) {
    links[to].focus({ preventScroll: true });
    links[to].closest("tr").scrollIntoView({ block: "nearest", behavior: "instant" });
  }
}

function nameRun(run) {
  $("run").textContent = run.name;
  $("about").textContent = [run.preset && `preset ${run.preset}`, run.status === "running" ? "running" : "", run.command].filter(Boolean).join(" · ");
  $("about").title = run.command || "";
}

// --- an episode -----------------------------------------------------------------------------------

async function loadEpisode(place) {
  const question = ++asked;
  try {
    const p = params();
    p.set("place", place);
    const found = await ask(`/api/episode?${p}`);
    if (question !== asked) return;
    complain(null);
    showEpisode(found);
  } catch (error) {
    if (question !== asked) return;
    if (error.status) {
      readdress(params());
      await route();
    }
    complain(error);
  }
}

function showEpisode(found) {
  shown.place = last = found.place;
  lastOffset = found.around.offset;
  nameRun(found.run);
  const { header, around } = found;
  document.title = `${header.title} · ${header.policy}`;
  $("head").replaceChildren(...headOf(header, around));
  [$("tab-time").textContent, $("time-title").textContent] = TRUTHS[header.kind];
  $("entries").replaceChildren(...found.talk.map((entry) => entryOf(entry, header)));
  $("moments").replaceChildren(...momentsOf(found.timeline, header));
  show("episode");
  scrollTo({ top: 0, behavior: "instant" });
  $("time").scrollTop = 0;
  $("head").querySelector("h1").focus({ preventScroll: true });
}

function headOf(header, around) {
  const at = around.position ? `${number(around.position)} of ${number(around.of)}` : "not in the filtered list";
  const to = (place, words, key) => el("button", { type: "button", disabled: !place, title: `Key ${key}`, on: { click: () => turn(place) } }, words);
  const walk = el("div", { class: "walk" },
    el("button", { type: "button", title: "Key Esc", on: { click: back } }, "← All episodes"),
    el("span", { class: "to" }, at), to(around.before, "Previous", "k"), to(around.after, "Next", "j"));
  const title = el("div", { class: "title" }, el("h1", { tabindex: "-1" }, header.title),
    el("span", { class: "who" }, header.policy), el("span", { class: "what" }, [`${GROUPS[header.kind]} ${header.group}`, wrapperOf(header), header.subtitle].filter(Boolean).join(" · ")));
  const used = [
    ["model calls", number(header.calls)],
    ["tokens in", number(header.tokens_in)], ["tokens out", number(header.tokens_out)],
    ["cost", usdText(header.usd)], ["model time", secondsText(Math.round(header.seconds * 10) / 10)],
  ];
  if (header.elapsed_s !== null) used.push(["virtual time", [secondsText(header.elapsed_s), longText(header.elapsed_s)].filter(Boolean).join(" = ")]);
  if (typeof header.reward === "number") used.push(["reward", number(header.reward)]);
  const parts = [walk, title, el("div", { class: "outcome" }, badgesOf(unchecked(header))), factsOf(used)];
  if (header.checks) parts.push(checksOf(header.checks));
  if (header.reason) parts.push(el("p", { class: "alert" }, `${header.outcomes.includes("missing") ? "Missing" : "Invalid"}, and scored nowhere: ${header.reason}`));
  const facts = Object.entries(header.facts).map(([name, value]) =>
    [name.replaceAll("_", " "), typeof value === "boolean" ? (value ? "yes" : "no") : String(value)]);
  const measures = Object.entries(header.measures || {}).map(([name, value]) =>
    [name.replaceAll("_", " "), typeof value === "number" ? number(value) : (value ? "yes" : "no")]);
  const more = el("details", { class: "more" }, el("summary", {}, "The episode and its measures"), factsOf(facts));
  if (measures.length && header.kind === "probe") more.append(el("p", { class: "small" }, "Summed over the three hidden worlds; yes: in all of them, unresolved and overclaim in any:"));
  if (measures.length) more.append(factsOf(measures));
  if (header.reported) more.append(el("p", { class: "small" }, "What the agent reported:"), textOf(JSON.stringify(header.reported, null, 2), "mono"));
  parts.push(more);
  return parts;
}

// A header without the outcomes that its checks tell.
function unchecked(header) {
  const checked = new Set((header.checks || []).map((check) => check.name));
  return { ...header, outcomes: header.outcomes.filter((name) => !checked.has(name)) };
}

// The observations of a contract case, each with what was wrong.
function checksOf(checks) {
  return el("ul", { class: "checks" }, ...checks.map(({ name, holds, faults }) => el("li", {},
    el("span", { class: `badge ${holds ? "good" : "bad"}` }, el("span", { "aria-hidden": true }, holds ? "✓" : "×"), name.replaceAll("_", " ").replace("authorisation ", "authorisation and ")),
    el("span", { class: holds ? "unseen" : "why" }, holds ? "holds" : faults.join("; ")))));
}

function entryOf(entry, header) {
  const body = entryBody[entry.role](entry, header);
  const wrong = entry.role === "model" && entry.answer && entry.answer.invalid ? "wrong" : "";
  const node = el("li", { class: `entry ${entry.role} ${wrong} ${entry.error ? "error" : ""}`, "data-link": entry.link }, ...body);
  if (entry.link !== null && entry.link !== undefined) {
    node.addEventListener("mouseenter", () => light(entry.link));
    node.addEventListener("mouseleave", () => light(null));
  }
  return node;
}

function whoOf(entry, words, ...more) {
  const time = entry.role === "result" ? entry.ended_s : entry.time_s ?? entry.began_s;
  const at = typeof time !== "number" ? null : el("button", {
    type: "button", class: "plain at", title: "Show this moment in the timeline", on: { click: () => reach("time", entry.link) },
  }, `at ${secondsText(time)}`);
  return el("header", {}, el("span", { class: "who" }, words || ROLES[entry.role]), at, ...more);
}

const entryBody = {
  system(entry) {
    const parts = [textOf(entry.text, "", 6000)];
    if (entry.tools.length) {
      parts.push(el("p", { class: "small" }, `${plural(entry.tools.length, "tool")} on offer:`));
      parts.push(factsOf(entry.tools.map((tool) => [tool.name, tool.description])));
    }
    const tools = entry.tools.length ? ` and ${plural(entry.tools.length, "tool")}` : "";
    return [el("details", {}, el("summary", {}, `System text${tools}, ${number(entry.text.length)} characters`), ...parts)];
  },
  task: (entry) => [whoOf(entry), textOf(entry.text, "", 4000)],
  view(entry) {
    const folded = (words, text) => el("details", {}, el("summary", { class: "small" }, words), textOf(text, "", 6000));
    if (entry.again) {
      return [whoOf(entry, "View", el("span", { class: "small" }, "what is new in it")), textOf(entry.new || "(nothing)"), folded("Whole view", entry.text)];
    }
    return [whoOf(entry, "View"), entry.fixed && folded("Operation, service, documentation, costs", entry.fixed), textOf(entry.new, "", 6000)];
  },
  nudge: (entry, header) => [whoOf(entry, header.kind === "agent" ? "User" : "Asked again"), textOf(entry.text)],
  note: (entry) => [textOf(entry.text)],
  trouble: (entry) => [whoOf(entry, null, el("span", {}, entry.kind), el("span", { class: "small" }, entry.at_utc)), textOf(entry.text)],
  model: modelBody,
  call(entry) {
    const marks = [];
    if (entry.focal) marks.push(el("span", { class: "badge bad" }, "the fault meets it"));
    if (entry.violation) marks.push(el("span", { class: "badge bad" }, "not permitted"));
    if (entry.again) marks.push(el("span", { class: "badge warn" }, "asked again after a final answer"));
    if (entry.done === false) marks.push(el("span", { class: "badge" }, "not carried out: the episode had ended"));
    const name = entry.link === undefined || entry.link === null ? "" : `#${entry.link} `;
    return [whoOf(entry, `Tool call ${name}`, el("span", { class: "mono" }, entry.tool), ...marks), textOf(entry.text, "mono", 800),
      entry.violation && el("p", { class: "wrong-why" }, entry.violation)];
  },
  result: (entry) => [whoOf(entry, entry.error ? "Error" : "Result", el("span", { class: "mono small" }, entry.tool || "")), textOf(entry.text, "mono", 800)],
};

function modelBody(entry, header) {
  const parts = [], answer = entry.answer;
  if (entry.reasoning) parts.push(el("details", {}, el("summary", { class: "small" }, "Reasoning"), textOf(entry.reasoning, "thought", 4000)));
  if (answer && answer.invalid) {
    parts.push(el("p", { class: "wrong-why" }, `Invalid answer: ${answer.invalid}`));
    parts.push(textOf(entry.text || "(no text)", "mono"));
  } else if (answer) {
    parts.push(el("div", { class: "chosen" }, answer.action));
    if (answer.key) parts.push(el("div", { class: "small" }, "with the key"), textOf(answer.key, "mono"));
    if (answer.rationale) parts.push(textOf(answer.rationale));
    if (answer.belief) parts.push(barsOf(Object.entries(answer.belief).map(([name, p]) => [name.replaceAll("_", " "), p, p.toFixed(2)]), "Belief"));
    if (entry.text) parts.push(el("details", {}, el("summary", { class: "small" }, "As it was written"), textOf(entry.text, "mono")));
  } else if (entry.text) parts.push(textOf(entry.text, "", 4000));
  else if (entry.empty) parts.push(el("p", { class: "small" }, "(no text)"));
  if (entry.scores && entry.scores.length) {
    parts.push(barsOf(entry.scores.map(([name, x]) => [name, Math.exp(x), number(Math.round(x * 100) / 100)]), "Log-probability"));
  }
  if (entry.call !== undefined) parts.push(...footOf(entry));
  return [whoOf(entry, "Model"), ...parts];
}

function footOf(entry) {
  const words = [`step ${entry.step}`, `${number(entry.tokens_in)} tokens in, ${number(entry.tokens_out)} out`];
  if (entry.usd) words.push(usdText(entry.usd));
  words.push(secondsText(Math.round(entry.seconds * 100) / 100));
  if (entry.end && !["stop", "tool_calls", "completed"].includes(entry.end)) words.push(`ended by ${entry.end}`);
  const place = shown.place;
  const box = el("div", { class: "raw", hidden: true });
  const button = el("button", { type: "button", class: "plain", "aria-expanded": "false", on: { async click() {
    const open = button.getAttribute("aria-expanded") === "true";
    button.setAttribute("aria-expanded", String(!open));
    box.hidden = open;
    if (!open && !box.firstChild) {
      try {
        const raw = await ask(`/api/call?${new URLSearchParams({ place, number: entry.call })}`);
        box.replaceChildren(textOf(JSON.stringify(raw, null, 2), "mono", 20000));
      } catch (error) {
        complain(error);
      }
    }
  } } }, "Request and response");
  return [el("p", { class: "foot" }, ...words.map((word) => el("span", {}, word)), button), box];
}

function barsOf(rows, label) {
  const cells = rows.flatMap(([name, share, value]) => {
    const fill = el("span", { class: "fill" });
    fill.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
    return [el("span", {}, name), el("span", { class: "track", "aria-hidden": "true" }, fill), el("span", { class: "value" }, value)];
  });
  return el("div", { class: "bars", role: "group", "aria-label": label }, ...cells);
}

// --- the timeline ---------------------------------------------------------------------------------

function momentsOf(rows, header) {
  const nodes = [];
  let before = null, over = header.elapsed_s === null;
  for (const row of rows) {
    if (row.heading) {
      nodes.push(el("li", { class: "world" }, el("h3", {}, row.heading), badgesOf({ outcomes: row.outcomes })));
      before = null;
      continue;
    }
    if (row.label) {
      nodes.push(momentOf(row, row.label !== before));
      before = row.label;
      continue;
    }
    if (!over && row.time_s > header.elapsed_s) {
      over = true;
      nodes.push(el("li", { class: "over" }, `The episode has ended at ${secondsText(header.elapsed_s)}; what is still under way arrives.`));
    }
    if (before !== null && row.time_s - before >= 60) {
      const gap = row.time_s - before;
      nodes.push(el("li", { class: "gap" }, `${longText(gap) || secondsText(gap)} pass`));
    }
    nodes.push(momentOf(row, row.time_s !== before));
    before = row.time_s;
  }
  if (!rows.length) nodes.push(el("li", { class: "gap" }, header.kind === "probe" ? "There is no decision to replay." : "Nothing happened."));
  return nodes;
}

function momentOf(row, told) {
  const truth = row.happened && !row.seen;
  const long = row.label ? "" : longText(row.time_s);
  const time = el("button", { type: "button", class: "plain at", title: "Show this in the conversation", on: { click: () => reach("talk", row.link) } },
    row.label || secondsText(row.time_s));
  const parts = [el("span", { class: `dot ${truth ? "truth" : "seen"} ${row.again ? "again" : ""}`, "aria-hidden": "true" })];
  if (told) parts.push(el("div", {}, time, long ? el("span", { class: "small" }, ` ${long}`) : null));
  if (row.seen) parts.push(el("span", { class: "unseen" }, "the client: "), textOf(row.seen, "", 260));
  if (row.happened) parts.push(el("div", { class: `truth-text ${row.again ? "again" : ""}` }, el("span", { class: "unseen" }, "really: "), textOf(row.happened, "", 260)));
  const node = el("li", { class: "moment", "data-link": row.link }, ...parts);
  if (row.link !== null) {
    node.addEventListener("mouseenter", () => light(row.link));
    node.addEventListener("mouseleave", () => light(null));
  }
  return node;
}

function linked(pane, link) {
  return [...$(pane).querySelectorAll("[data-link]")].filter((node) => node.dataset.link === String(link));
}

function light(link) {
  for (const node of document.querySelectorAll(".lit")) node.classList.remove("lit");
  if (link === null || link === undefined) return;
  for (const pane of ["talk", "time"]) for (const node of linked(pane, link)) node.classList.add("lit");
}

// Goes from one pane to what belongs together with it in the other.
function reach(pane, link) {
  choose(pane);
  light(link);
  const [first] = linked(pane, link);
  if (first) first.scrollIntoView({ block: "nearest" });
}

function choose(pane) {
  for (const name of ["talk", "time"]) {
    $(name).classList.toggle("shown", name === pane);
    $(`tab-${name}`).setAttribute("aria-selected", String(name === pane));
    $(`tab-${name}`).tabIndex = name === pane ? 0 : -1;
  }
}

// --- where we are ---------------------------------------------------------------------------------

function placeOf() {
  try {
    return decodeURIComponent(location.hash.slice(1));
  } catch {
    return location.hash.slice(1);
  }
}

function show(name) {
  $("list").hidden = name !== "list";
  $("episode").hidden = name !== "episode";
}

async function route() {
  routed = location.href;
  const place = placeOf();
  if (place) {
    if (!$("list").hidden) {
      scrolled = scrollY;
      cameFromList = true;
    }
    if (shown.place === null) choose("talk");
    await loadEpisode(place);
    return;
  }
  const returning = shown.place !== null;
  shown.place = null;
  cameFromList = false;
  document.title = "Transcripts";
  const p = params();
  if (returning && lastOffset !== null && lastOffset !== Number(p.get("offset") || 0)) {
    if (lastOffset) p.set("offset", lastOffset);
    else p.delete("offset");
    readdress(p);
  }
  $("search").value = p.get("q") || "";
  $("sort").value = p.get("sort") || "order";
  show("list");
  await loadList();
  if (returning) scrollTo({ top: scrolled, behavior: "instant" });
  const link = returning && rowLinks().find((one) => one.dataset.place === last);
  if (searchNext) {
    searchNext = false;
    $("search").focus();
    $("search").select();
  } else if (link) {
    link.focus({ preventScroll: true });
    link.closest("tr").scrollIntoView({ block: "nearest", behavior: "instant" });
  }
}

function moved() {
  if (location.href !== routed) route();
}

// Another episode takes the place of this one, so that the way back leads to the list.
function turn(place) {
  if (place) location.replace(`#${encodeURIComponent(place)}`);
}

function back() {
  if (cameFromList) {
    history.back();
    return;
  }
  history.pushState(null, "", location.pathname + location.search);
  route();
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  const { key, target } = event;
  const typing = target.matches("input[type=search], select");
  const inList = !placeOf();
  if (key === "Escape") {
    if (typing) target.blur();
    else if (!inList) back();
    else light(null);
  } else if (typing) {
    if (key === "Enter" && target.id === "search" && rowLinks().length) rowLinks()[0].focus();
    return;
  } else if (key === "/") {
    event.preventDefault();
    if (inList) {
      $("search").focus();
      $("search").select();
    } else {
      searchNext = true;
      back();
    }
  } else if (inList) {
    const arrows = target === document.body || target.id === "main" || target.matches("#rows a");
    if (key === "j" || (arrows && key === "ArrowDown")) step(1);
    else if (key === "k" || (arrows && key === "ArrowUp")) step(-1);
    else return;
    event.preventDefault();
  } else if (target.matches("[role=tab]") && key.startsWith("Arrow")) {
    const other = target.id === "tab-talk" ? "time" : "talk";
    choose(other);
    $(`tab-${other}`).focus();
  } else if (key === "j" || key === "ArrowRight") {
    document.querySelector(".walk button:last-child").click();
  } else if (key === "k" || key === "ArrowLeft") {
    document.querySelector(".walk button:nth-last-child(2)").click();
  }
}

let typed = 0;
$("search").addEventListener("input", () => {
  clearTimeout(typed);
  typed = setTimeout(() => change((p) => $("search").value.trim() ? p.set("q", $("search").value) : p.delete("q")), 180);
});
$("sort").addEventListener("change", () => change((p) => $("sort").value === "order" ? p.delete("sort") : p.set("sort", $("sort").value)));
$("toggle").addEventListener("click", () => {
  const open = $("filters").classList.toggle("shown");
  $("toggle").setAttribute("aria-expanded", String(open));
});
$("skip").addEventListener("click", () => (placeOf() ? $("talk").querySelector("button, summary") : rowLinks()[0] || $("main")).focus());
$("home").addEventListener("click", (event) => {
  if (event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  history.pushState(null, "", location.pathname);
  route();
});
for (const pane of ["talk", "time"]) $(`tab-${pane}`).addEventListener("click", () => choose(pane));
document.addEventListener("keydown", onKey);
addEventListener("hashchange", moved);
addEventListener("popstate", moved);
setInterval(async () => {
  if (document.hidden || reading || placeOf()) return;
  try {
    const state = await ask("/api/state");
    if (!$("alert").hidden && shown.list) complain(null);
    if (state.version !== shown.version && !placeOf()) loadList();
  } catch (error) {
    complain(error);
  }
}, POLL_MS);
route();
