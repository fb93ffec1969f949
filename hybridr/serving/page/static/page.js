// The page of `hybridr serve`. Whatever comes from documents, queries or people is put in as text, never as HTML.

const element = (id) => document.getElementById(id);
const made = (tag, text = "", name = "") => {
  const node = document.createElement(tag);
  node.textContent = text;
  if (name) node.className = name;
  return node;
};
const say = (text) => { element("said").textContent = text; };

// What the server answers; its errors are said, and a missing token is asked for.

async function ask(path, body) {
  const token = sessionStorage.getItem("token");
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const method = body === undefined ? "GET" : "POST";
  const found = await fetch(path, { method, headers, body: body && JSON.stringify(body) });
  if (found.status === 401) {
    element("token-form").hidden = false;
    element("token").focus();
  }
  if (!found.ok) {
    const { error = {} } = await found.json().catch(() => ({}));
    const said = [error.message ?? `the server answered ${found.status}`, error.hint].filter(Boolean).join(": ");
    throw Object.assign(new Error(said), { status: found.status });
  }
  return found;
}

const json = async (path, body) => (await ask(path, body)).json();

const guarded = (work) => async (event) => {
  event?.preventDefault?.();
  say("");
  try { await work(event); } catch (error) { say(error.message); }
};

// Comparing.

const percent = (share) => `${Math.round(100 * share)} %`;

const SIGNS = { amp: "&", lt: "<", gt: ">", quot: '"', "#x27": "'", "#x2F": "/" };
const plain = (html) => html.replace(/&(amp|lt|gt|quot|#x27|#x2F);/g, (_, name) => SIGNS[name]);

function marked(text) {
  const node = made("p");
  let inside = false;
  for (const part of text.split(/(<\/?em>)/)) {
    if (part === "<em>" || part === "</em>") inside = part === "<em>";
    else if (part) node.append(inside ? made("mark", plain(part)) : plain(part));
  }
  return node;
}

function moved(hit, ranks, other) {
  const before = ranks.get(hit.doc_id);
  if (before === undefined) return made("span", `not among the first by ${other}`, "facts");
  if (before === hit.rank) return made("span", `also ${before} by ${other}`, "facts");
  const up = before > hit.rank;
  return made("span", `${up ? "▲" : "▼"} ${before} by ${other}`, up ? "up" : "down");
}

function partsOf(hit) {
  if (!hit.parts) {
    const known = { BM25: hit.lexical_score, cosine: hit.dense_score };
    const told = Object.entries(known).filter(([, value]) => value !== null);
    return [made("p", told.map(([name, value]) => `${name} ${value.toFixed(3)}`).join(", "), "facts")];
  }
  const parts = Object.entries(hit.parts).filter(([, value]) => value > 0);
  const whole = parts.reduce((sum, [, value]) => sum + value, 0);
  const bar = made("div", "", "bar");
  bar.setAttribute("aria-hidden", "true");
  parts.forEach(([, value], i) => {
    const part = made("i", "", `p${i % 4}`);
    part.style.width = `${100 * value / whole}%`;
    bar.append(part);
  });
  return [bar, made("p", parts.map(([name, value]) => `${name} ${value.toFixed(3)}`).join(" + "), "facts")];
}

function shownHit(hit, ranks, other) {
  const node = made("li");
  const head = made("p");
  head.append(made("b", `${hit.rank}. ${hit.doc_id}`), ` ${hit.score.toFixed(4)} `, moved(hit, ranks, other));
  if (hit.confidence !== null) head.append(made("span", ` confidence ${hit.confidence.toFixed(3)}`, "facts"));
  if (hit.rule) head.append(made("span", ` pinned by the rule ${hit.rule}`, "facts"));
  node.append(head, marked(hit.text), ...partsOf(hit));
  return node;
}

function showSide(side, name, { lists, nearest }, other) {
  const ranks = new Map(lists[other].map((hit) => [hit.doc_id, hit.rank]));
  const none = nearest[name] ? [made("li", "nothing fits; the nearest is"), shownHit(nearest[name], ranks, other)] : [];
  element(`${side}-name`).textContent = name;
  element(`${side}-hits`).replaceChildren(...lists[name].map((hit) => shownHit(hit, ranks, other)), ...none);
}

async function compare() {
  const [left, right] = [element("left").value, element("right").value];
  const query = element("query").value;
  say("searching …");
  const found = await json("compare", { query, systems: [...new Set([left, right])], k: 10 });
  const { lists } = found;
  showSide("left", left, found, right);
  showSide("right", right, found, left);
  const shared = lists[left].filter((hit) => lists[right].some((one) => one.doc_id === hit.doc_id)).length;
  say(`${left} and ${right} share ${shared} of their first ${Math.max(lists[left].length, lists[right].length)}`);
}

async function fillSystems() {
  const { index, systems } = await json("compare");
  element("index").textContent = index;
  for (const [side, chosen] of [["left", "bm25"], ["right", "hybrid"]]) {
    element(side).replaceChildren(...systems.map((name) => made("option", name)));
    element(side).value = chosen;
  }
}

// Judging: one document at a time; what is said of a query is sent when its last document is judged.

const judging = { judge: "", query: null, documents: [], grades: {}, at: 0, skipped: [], before: [] };

function showStanding(standing) {
  const { judged, wanted, queries, least, agreement, judges } = standing;
  element("progress").max = wanted;
  element("progress").value = Math.min(judged, wanted);
  element("progress-text").textContent =
    `${judged} of ${wanted} queries judged with a relevant document; ${queries} queries are there`;
  const people = Object.entries(judges).map(([name, count]) => `${name} ${count}`).join(", ");
  const pairs = agreement.map(({ judges: [one, other], documents, same, kappa }) =>
    `${one} and ${other} agree on ${percent(same)} of ${documents} documents` +
    (kappa === null ? "" : ` (Cohen's kappa ${kappa.toFixed(2)})`));
  element("agreement").textContent = [people, ...pairs].filter(Boolean).join("; ");
  element("add").open ||= queries === 0;
  for (const id of ["tune", "evaluate"]) element(id).disabled = judged < least;
  element("export").disabled = Object.keys(judges).length === 0;
}

function showDocument() {
  const { documents, at, grades } = judging;
  const { doc_id: id, fields } = documents[at];
  const before = id in grades ? `; you said ${grades[id] ? "relevant" : "not"}` : "";
  element("place").textContent = `document ${at + 1} of ${documents.length}${before}`;
  element("document").replaceChildren(
    ...fields.filter(([, text]) => text).flatMap(([name, text]) => [made("h3", name), made("p", text)]));
}

async function following(queryId = null) {
  const { judge, skipped } = judging;
  const found = await json("judging/next", { judge, skip: skipped, query_id: queryId });
  const { query, query_id: id, documents = [], grades = {} } = found;
  element("judging").hidden = query === null;
  if (query === null) {
    judging.query = null;
    element("add").open = true;
    return say("no query is left to judge: add some");
  }
  if (documents.length === 0) {
    judging.skipped.push(id);
    return following();
  }
  Object.assign(judging, { query: id, documents, grades, at: 0 });
  element("judged-query").textContent = query;
  element("judged-query").focus();
  showDocument();
}

async function give(grade) {
  const { documents, grades } = judging;
  grades[documents[judging.at].doc_id] = grade;
  if (judging.at + 1 < documents.length) {
    judging.at += 1;
    return showDocument();
  }
  await finish();
}

async function finish() {
  const { judge, query, grades } = judging;
  showStanding(await json("judging/grades", { judge, query_id: query, grades }));
  judging.before.push(query);
  await following();
}

const answers = {
  yes: () => give(1),
  no: () => give(0),
  undo: async () => {
    if (judging.at > 0) {
      judging.at -= 1;
      showDocument();
    } else if (judging.before.length) await following(judging.before.pop());
  },
  rest: async () => {
    for (const { doc_id: id } of judging.documents.slice(judging.at)) judging.grades[id] = 0;
    await finish();
  },
  skip: async () => {
    judging.skipped.push(judging.query);
    await following();
  },
};
const keys = { y: "yes", n: "no", u: "undo", r: "rest", s: "skip" };
let busy = false;

const answered = (name) => guarded(async () => {
  if (busy || judging.query === null) return;
  busy = true;
  try { await answers[name](); } finally { busy = false; }
});

function pressed(event) {
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
  const name = keys[event.key.toLowerCase()];
  if (name && !typing && !event.ctrlKey && !event.metaKey && !event.altKey && !element("judging").hidden) {
    answered(name)(event);
  }
}

async function addQueries() {
  const [file] = element("log").files;
  const lines = `${element("queries").value}\n${file ? await file.text() : ""}`.split(/\r?\n/);
  const queries = [...new Set(lines.map((line) => line.trim()).filter(Boolean))];
  if (!queries.length) return say("no query was typed, and no file chosen");
  const standing = await json("judging/queries", { queries });
  showStanding(standing);
  say(`${standing.added} new queries`);
  element("queries-form").reset();
  element("add").open = false;
  if (judging.judge && judging.query === null) await following();
}

// Tasks: tune, evaluate, take back.

const wait = (milliseconds) => new Promise((done) => { setTimeout(done, milliseconds); });

function showTable({ columns, rows }) {
  const line = (tag, cells) => {
    const row = made("tr");
    row.append(...cells.map((cell) => made(tag, String(cell))));
    return row;
  };
  element("table").hidden = !columns;
  if (columns) element("table").replaceChildren(line("th", columns), ...rows.map((row) => line("td", row)));
}

async function follow(state) {
  const buttons = ["tune", "evaluate", "reset"].map(element);
  const enabled = buttons.filter((button) => !button.disabled);
  for (const button of enabled) button.disabled = true;
  try {
    while (state.state === "running") {
      const share = state.total ? ` ${percent(state.done / state.total)}` : "";
      element("task").textContent = `${state.task}: ${state.stage ?? "begins"}${share}`;
      await wait(400);
      state = await json("tasks");
    }
  } finally {
    for (const button of enabled) button.disabled = false;
  }
  if (state.state === "failed") throw new Error([state.error, state.hint].filter(Boolean).join(": "));
  if (state.state !== "done") return;
  element("task").textContent = `${state.task}: ${state.result.said}`;
  showTable(state.result);
}

const started = (task) => guarded(async () => follow(await json("tasks", { task })));

async function save() {
  const link = made("a");
  link.href = URL.createObjectURL(await (await ask("judging/export")).blob());
  link.download = "judgements.zip";
  link.click();
  URL.revokeObjectURL(link.href);
}

// Rules.

const RULE = ["name", "replace"];
const lines = (id) => element(id).value.split("\n").map((line) => line.trim()).filter(Boolean);

function ruleOfForm() {
  const rule = { [element("rule-kind").value]: element("rule-said").value };
  for (const part of RULE) if (element(`rule-${part}`).value) rule[part] = element(`rule-${part}`).value;
  for (const part of ["pin", "ban"]) if (lines(`rule-${part}`).length) rule[part] = lines(`rule-${part}`);
  if (element("rule-filter").value.trim()) rule.filter = JSON.parse(element("rule-filter").value);
  return rule;
}

function edit(rule) {
  const by = element("rule-by").value;
  element("rule-form").reset();
  const kind = ["text", "words", "prefix", "pattern"].find((one) => rule[one] !== undefined);
  element("rule-kind").value = kind;
  element("rule-said").value = rule[kind];
  for (const part of RULE) element(`rule-${part}`).value = rule[part] ?? "";
  for (const part of ["pin", "ban"]) element(`rule-${part}`).value = (rule[part] ?? []).join("\n");
  element("rule-filter").value = rule.filter ? JSON.stringify(rule.filter) : "";
  element("rule-by").value = by;
  element("rule-name").focus();
}

function ruleRow(rule) {
  const { name, by = "", at = "", ...said } = rule;
  const change = made("button", "Edit");
  change.addEventListener("click", () => edit(rule));
  const gone = made("button", "Remove");
  gone.addEventListener("click", guarded(async () => {
    showRules(await json("rules/remove", { names: [name], by: element("rule-by").value || "page" }));
  }));
  const parts = Object.entries(said).map(([part, value]) => `${part}: ${JSON.stringify(value)}`);
  const row = made("tr");
  const buttons = made("td");
  buttons.append(change, " ", gone);
  row.append(made("td", name), made("td", parts.join("; ")), made("td", `${by} ${at}`.trim()), buttons);
  return row;
}

function showRules({ version, total, rules, missing = [], left_out = {} }) {
  const more = total > rules.length ? `, the first ${rules.length} are shown` : "";
  element("rules-version").textContent = total ? `${total} rules, version ${version}${more}` : "no rules";
  element("rules-table").replaceChildren(...rules.map(ruleRow));
  for (const [name, why] of Object.entries(left_out)) say(`the rule ${name} is left out: ${why}`);
  if (missing.length) say(`the index has no such documents, pinned in vain: ${missing.slice(0, 5).join(", ")}`);
}

async function saveRule() {
  showRules(await json("rules", { rule: ruleOfForm(), by: element("rule-by").value }));
  element("rule-form").reset();
}

// The parts of the page.

const PARTS = ["compare", "judge", "rules"];

function show() {
  const part = PARTS.find((name) => location.hash === `#${name}`) ?? "compare";
  if (part === "rules") guarded(async () => showRules(await json("rules")))();
  for (const name of PARTS) {
    element(name).hidden = name !== part;
    if (name === part) element(`to-${name}`).setAttribute("aria-current", "page");
    else element(`to-${name}`).removeAttribute("aria-current");
  }
}

async function open() {
  try { await fillSystems(); } catch (error) {
    if (error.status !== 404) throw error;
    return say("this server has no index: start it with hybridr serve --index NAME");
  }
  element("token-form").hidden = true;
  element("api").hidden = sessionStorage.getItem("token") !== null; // a link cannot carry the token
  showStanding(await json("judging"));
  show();
  await follow(await json("tasks"));
}

element("token-form").addEventListener("submit", guarded(async () => {
  sessionStorage.setItem("token", element("token").value);
  element("token").value = "";
  await open();
}));
element("search-form").addEventListener("submit", guarded(compare));
for (const side of ["left", "right"]) {
  element(side).addEventListener("change", guarded(async () => element("query").value && compare()));
}
element("start-form").addEventListener("submit", guarded(async () => {
  Object.assign(judging, { judge: element("judge-name").value, skipped: [], before: [] });
  await following();
}));
element("rule-form").addEventListener("submit", guarded(saveRule));
element("queries-form").addEventListener("submit", guarded(addQueries));
for (const name of Object.keys(answers)) element(name).addEventListener("click", answered(name));
for (const task of ["tune", "evaluate", "reset"]) element(task).addEventListener("click", started(task));
element("export").addEventListener("click", guarded(save));
document.addEventListener("keydown", pressed);
addEventListener("hashchange", show);
guarded(open)();
