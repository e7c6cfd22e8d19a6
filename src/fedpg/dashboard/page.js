// The page: takes runs from the server's events and shows them; it never asks for anything else.
import { colour, curve, draw, icon, make, picture, short, strip, style } from "./charts.js";

const runs = new Map();  // by place
const panels = new Map();
const lines = new Map();
const shown = new Map();  // by place: whether its panel is open
const find = (id) => document.getElementById(id);
const STATES = { running: "●", waiting: "◌", finished: "✓", quiet: "❚❚", damaged: "!", removed: "∅" };
let ahead = 0;  // the server's clock less ours, in seconds
let heard = 0;
let told = "";

function clock(seconds) {
  if (seconds === null) return "–";
  if (seconds < 90) return `${Math.max(0, seconds).toFixed(0)} s`;
  if (seconds < 5400) return `${(seconds / 60).toFixed(0)} min`;
  if (seconds < 172800) return `${(seconds / 3600).toFixed(1)} h`;
  return `${(seconds / 86400).toFixed(1)} days`;
}

const ago = (moment) => (moment === null ? "" : clock(Date.now() / 1000 + ahead - moment));
const ordered = () => [...runs.values()].sort((a, b) => a.id - b.id);
const isShown = (run) => shown.get(run.id) ?? (runs.size <= 2 || run.id === 0);

function key(run) {
  const { cls, dash } = style(run.id);
  const line = draw("path", { d: "M0 6H22", stroke: "currentColor", "stroke-width": 3, "stroke-dasharray": dash });
  return draw("svg", { viewBox: "0 0 22 12", width: 22, height: 12, class: `key ${cls}`, "aria-hidden": "true" }, line);
}

function badge(element, run) {
  element.className = `state ${run.state}`;
  element.textContent = `${STATES[run.state] ?? ""} ${run.state}`;
  element.title = run.why;
}

function about(run) {
  const liars = run.byzantine ? `, ${run.byzantine} Byzantine (${run.attack})` : "";
  const who = run.federation ? "sites" : "agents";
  const parts = [run.task, run.algorithm, run.aggregator, run.agents ? `${run.agents} ${who}${liars}` : "", run.seed === null ? "" : `seed ${run.seed}`];
  return parts.filter(Boolean).join(" · ");
}

function tile(name, value, more) {
  const small = make("small", {}, more ?? "");
  return make("div", { class: "tile" }, make("dt", {}, name), make("dd", {}, value, small));
}

function decided(run) {
  if (!run.rule) return "";
  if (run.rule === "nobody") return "nobody was accepted";
  return `decided by ${run.rule === "other" ? run.aggregator : run.rule}`;
}

const isLive = (run) => run.state === "running" || run.state === "waiting";

function tiles(run) {
  const spread = run.test_return_std === null ? "" : `± ${short(run.test_return_std)}; `;
  const accepted = run.rows.filter((row) => row.outcome === "accepted").length;
  const share = run.total ? Math.min(1, run.trajectories / run.total) : 0;
  const bar = make("div", { class: "bar" }, make("i"));
  bar.firstChild.style.width = `${100 * share}%`;
  const progress = tile("trajectories", short(run.trajectories), run.total ? `of ${short(run.total)}` : "");
  progress.querySelector("small").prepend(bar);
  const connected = run.rows.filter((row) => row.connected).length;
  const found = [
    tile("round", String(run.round), decided(run)),
    tile("test return", short(run.test_return), run.best === null ? "" : `${spread}best ${short(run.best)}`),
    progress,
    tile("accepted", run.rows.some((row) => row.outcome) ? `${accepted}/${run.rows.length}` : "–", "in the last round"),
  ];
  if (run.federation && isLive(run)) found.push(tile("connected", `${connected}/${run.rows.length}`, "sites"));
  if (run.harm !== null) found.push(tile("harm", short(run.harm), "mean of 20 rounds"));
  found.push(tile("speed", run.steps_per_second === null ? "–" : `${short(run.steps_per_second)}/s`, run.seconds_per_round === null ? "steps" : `steps; ${short(run.seconds_per_round)} s a round`));
  const over = run.state === "finished";
  found.push(tile("time left", over ? "done" : clock(run.seconds_left), run.changed === null ? "" : over ? `${ago(run.changed)} ago` : `last news ${ago(run.changed)} ago`));
  return found;
}

function cell(content, cls = "", label = "") {
  const td = make("td", cls ? { class: cls } : {});
  if (label) td.dataset.is = label;
  if (content === "") td.classList.add("empty");
  td.append(content);
  return td;
}

const anySeen = (run) => run.rows.some((row) => row.seen !== null);  // ledgers of older versions have no times

function agentRow(run, row) {
  const name = cell(row.name, "name");
  if (row.byzantine) name.append(make("span", { class: "tag" }, "Byzantine"));
  const now = make("span", { class: `outcome ${colour(row.outcome)}` }, icon(row.outcome), row.outcome || "nothing yet");
  const outcome = cell(now, "now");
  if (row.reason) outcome.append(make("span", { class: "reason" }, row.reason));
  const all = Object.values(row.counts).reduce((sum, n) => sum + n, 0);
  const rest = Object.entries(row.counts).filter(([word]) => word !== "accepted").map(([word, n]) => `${n} ${word}`).join(", ");
  const far = row.far === null ? "" : ` (${short(row.far)}×)`;
  const cells = [name, outcome];
  if (run.federation) {
    const word = row.connected === null || !isLive(run) ? "" : row.connected ? "yes" : "no";
    cells.push(cell(word, word === "no" ? "off" : "", "online"));
    if (anySeen(run)) cells.push(cell(row.seen === null ? "" : `${ago(row.seen)} ago`, "n", "last seen"));
    cells.push(cell(row.seconds === null ? "" : `${short(row.seconds)} s`, "n", "took"));
  }
  cells.push(cell(row.replied ? `round ${row.replied}` : "", "n", "last reply"));
  cells.push(cell(row.distance === null && !far ? "" : `${row.distance === null ? "" : short(row.distance)}${far}`, "n", "distance"));
  cells.push(cell(all ? `${row.counts.accepted ?? 0} of ${all}` : "", "n", "accepted"));
  const history = cell(row.recent.length ? strip(row.recent) : "", "strip");
  history.title = rest;
  cells.push(history);
  return make("tr", {}, ...cells);
}

function makePanel(run) {
  const part = (kind, cls) => make(kind, { class: cls });
  const p = { title: make("h2"), state: part("span", "state"), about: part("p", "about"), warnings: part("ul", "warnings"), tiles: part("dl", "tiles") };
  p.curve = part("div", "chart");
  p.picture = part("div", "chart");
  p.pictureTitle = make("h3");
  p.legend = part("p", "legend");
  p.head = make("thead");
  p.body = make("tbody");
  p.events = part("ul", "events");
  p.more = make("details", {}, make("summary", {}, "What happened"), p.events);
  const pictures = make("div", { class: "pictures" },
    make("div", {}, make("h3", {}, "test return against trajectories, ± one standard deviation of the test episodes"), p.curve),
    make("div", {}, p.pictureTitle, p.picture, p.legend));
  const table = make("div", { class: "scroller" }, make("table", { class: "agents" }, p.head, p.body));
  p.root = make("section", { class: "card panel", "aria-label": `Run ${run.name}` }, make("header", {}, key(run), p.title, p.state), p.about, p.warnings, p.tiles, pictures, table, p.more);
  p.resized = new ResizeObserver(() => { if (p.width !== p.curve.clientWidth) drawCharts(p); });
  p.resized.observe(p.curve);
  return p;
}

function drawCharts(p) {
  p.width = p.curve.clientWidth;
  curve(p.curve, [p.run]);
  picture(p.picture, p.run);
}

// What grows older by itself is written again with every beat.
function fillTimes(p) {
  p.tiles.replaceChildren(...tiles(p.run));
  p.body.replaceChildren(...p.run.rows.map((row) => agentRow(p.run, row)));
}

function fillPanel(p, run) {
  p.run = run;
  p.title.textContent = run.name;
  badge(p.state, run);
  p.about.textContent = [about(run), run.state === "running" ? "" : run.why].filter(Boolean).join(" — ");
  p.warnings.hidden = !run.warnings.length;
  p.warnings.replaceChildren(...run.warnings.map((text) => make("li", {}, text)));
  p.pictureTitle.textContent = `round ${run.round}: distance of each ${run.federation ? "site" : "agent"} to the centre`;
  const words = [...new Set(["accepted", "turned away", ...run.rows.map((row) => row.outcome)])].filter(Boolean);
  p.legend.replaceChildren(...words.map((word) => make("span", {}, icon(word), word)));
  if (run.byzantine) p.legend.append(make("span", {}, make("i", { class: "under" }), "Byzantine"));
  const names = run.federation ? ["site", "this round", "online", "last seen", "took"] : ["agent", "this round"];
  if (run.federation && !anySeen(run)) names.splice(3, 1);
  names.push("last reply", "distance (× threshold)", "accepted", "last rounds, newest at the right");
  const right = new Set(["last seen", "took", "last reply", "distance (× threshold)", "accepted"]);
  p.head.replaceChildren(make("tr", {}, ...names.map((name) => make("th", { scope: "col", class: right.has(name) ? "n" : "" }, name))));
  fillTimes(p);
  p.more.hidden = !run.events.length;
  p.events.replaceChildren(...[...run.events].reverse().map((event) => {
    const when = event.time === null ? `round ${event.round}` : new Date(event.time * 1000).toLocaleTimeString();
    return make("li", {}, make("time", {}, when), event.site ? make("b", {}, event.site) : "", event.event, event.reason ? `: ${event.reason}` : "");
  }));
  drawCharts(p);
}

function makeLine(run) {
  const box = make("input", { type: "checkbox", "aria-label": `show ${run.name} below` });
  box.addEventListener("change", () => { shown.set(run.id, box.checked); panelsNow(); });
  const state = make("span");
  const name = cell("", "name");
  const cells = ["round", "return", "harm", "steps/s", "left"].map((word) => cell("", "n more", word));
  const root = make("tr", {}, cell(box), name, cell(state), ...cells);
  return { root, box, state, name, cells };
}

function fillLine(line, run) {
  line.box.checked = isShown(run);
  line.name.replaceChildren(key(run), ` ${run.name}`);
  badge(line.state, run);
  const values = [String(run.round), short(run.test_return), short(run.harm), short(run.steps_per_second), run.state === "finished" ? "done" : clock(run.seconds_left)];
  line.cells.forEach((td, i) => { td.textContent = values[i]; td.classList.remove("empty"); });
}

function overview() {
  const all = ordered();
  find("overview").hidden = all.length < 2;
  const missing = all.at(-1)?.left_out ?? 0;
  find("left-out").hidden = !missing;
  find("left-out").textContent = `${missing} more runs are not shown: name fewer folders.`;
  if (all.length < 2) return;
  const body = find("runs").tBodies[0];
  for (const run of all) {
    if (!lines.has(run.id)) { lines.set(run.id, makeLine(run)); body.append(lines.get(run.id).root); }
    fillLine(lines.get(run.id), run);
  }
  curve(find("together"), all, { band: all.length <= 3, harm: false, height: 240 });
}

function panelsNow() {
  const box = find("panels");
  for (const run of ordered()) {
    const open = isShown(run);
    if (open && !panels.has(run.id)) {
      const p = makePanel(run);
      panels.set(run.id, p);
      const after = [...panels.keys()].filter((id) => id > run.id).sort((a, b) => a - b)[0];
      box.insertBefore(p.root, after === undefined ? null : panels.get(after).root);
      fillPanel(p, run);
    } else if (!open && panels.has(run.id)) {
      panels.get(run.id).resized.disconnect();
      panels.get(run.id).root.remove();
      panels.delete(run.id);
    }
    if (lines.has(run.id)) lines.get(run.id).box.checked = open;
  }
}

function show(run) {
  runs.set(run.id, run);
  overview();
  panelsNow();
  if (panels.has(run.id)) fillPanel(panels.get(run.id), run);
  const all = ordered(), done = all.filter((each) => each.state === "finished").length;
  const going = all.length - done;
  find("summary").textContent = all.length === 1 ? all[0].name : `${all.length} runs, ${done} finished`;
  document.title = all.length === 1 ? `${run.name}: round ${run.round}, return ${short(run.test_return)}` : `fedpg: ${going} of ${all.length} runs going on`;
  const news = all.flatMap((each) => [...each.warnings.map((text) => `${each.name}: ${text}`), ...(each.state === "finished" ? [`${each.name} is finished`] : [])]).slice(0, 5).join(". ");
  if (news !== told) { told = news; find("say").textContent = news; }
}

const finished = () => runs.size > 0 && ordered().every((run) => run.state === "finished");

function say(text, kind) {
  const pill = find("link");
  if (pill.textContent !== text) pill.textContent = text;
  pill.className = `pill ${kind}`;
}

function listen() {
  const source = new EventSource("events");
  source.addEventListener("begin", (event) => {
    const count = JSON.parse(event.data).runs;
    for (const id of [...runs.keys()].filter((each) => each >= count)) {  // another server, with fewer runs
      shown.set(id, false);
      panelsNow();
      shown.delete(id);
      runs.delete(id);
      lines.get(id)?.root.remove();
      lines.delete(id);
    }
  });
  source.addEventListener("run", (event) => { heard = Date.now(); show(JSON.parse(event.data)); });
  source.addEventListener("beat", (event) => {
    heard = Date.now();
    ahead = JSON.parse(event.data).now - heard / 1000;
    for (const p of panels.values()) fillTimes(p);
    say(finished() ? (runs.size > 1 ? "all runs are finished" : "the run is finished") : "live", "live");
  });
  source.addEventListener("error", () => {
    if (finished()) say("finished; the server has ended", "");
    else say("the server is gone; trying again", "lost");
    if (source.readyState === EventSource.CLOSED) setTimeout(listen, 3000);
  });
}

setInterval(() => {
  if (heard && Date.now() - heard > 20000 && !finished()) say(`no word from the server for ${clock((Date.now() - heard) / 1000)}`, "lost");
}, 5000);
let width = 0;
new ResizeObserver(() => {
  const now = find("overview").clientWidth;
  if (now !== width) { width = now; overview(); }
}).observe(find("overview"));
listen();
