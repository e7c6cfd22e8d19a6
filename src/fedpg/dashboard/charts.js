// Pictures as SVG, made by the document's own functions: what comes from files is only ever text and numbers.

const SVG = "http://www.w3.org/2000/svg";

export function draw(kind, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, kind);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export function make(kind, attributes = {}, ...children) {
  const element = document.createElement(kind);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export function short(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1e6) return `${(value / 1e6).toPrecision(3)}M`;
  if (size >= 1e4) return `${(value / 1e3).toPrecision(3)}k`;
  if (size >= 100) return value.toFixed(0);
  if (size === 0) return "0";
  return size < 0.001 ? value.toExponential(1) : String(Number(value.toPrecision(size >= 10 ? 3 : 2)));
}

// What became of an agent: each word has a colour and a shape.
export function mark(outcome, x, y, r) {
  const place = `translate(${x} ${y})`;
  const line = { fill: "none", stroke: "currentColor", "stroke-width": 2, transform: place };
  switch (outcome) {
    case "accepted": return draw("circle", { r, fill: "currentColor", transform: place });
    case "turned away": return draw("path", { ...line, "stroke-width": 2.6, d: `M${-r} ${-r}L${r} ${r}M${-r} ${r}L${r} ${-r}` });
    case "unusable": return draw("rect", { x: -r, y: -r, width: 2 * r, height: 2 * r, fill: "currentColor", transform: place });
    case "failed": return draw("path", { d: `M0 ${-r}L${r} ${r}L${-r} ${r}Z`, fill: "currentColor", transform: place });
    case "not judged": return draw("circle", { ...line, r: r - 1 });
    default: return draw("path", { ...line, d: `M${-r} 0H${r}` });
  }
}

export const colour = (outcome) => `c-${(outcome || "unknown").replaceAll(" ", "-").replace(/[^a-z-]/g, "")}`;

export function icon(outcome, size = 12) {
  const svg = draw("svg", { viewBox: "-7 -7 14 14", width: size, height: size, "aria-hidden": "true", class: colour(outcome) });
  svg.append(mark(outcome, 0, 0, 5));
  return svg;
}

function ticks(low, high, count) {
  const raw = (high - low) / Math.max(1, count);
  const ten = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((f) => f * ten).find((s) => s >= raw * 0.8);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(Number((i * step).toPrecision(12)));
  return found;
}

const DASHES = ["", "7 4", "2 3", "9 3 2 3"];
export const style = (place) => ({ cls: `r-${place % 7}`, dash: DASHES[Math.floor(place / 7) % 4] });

// The test return against trajectories, with the band of the test episodes; below it the harm, where it is known.
export function curve(box, runs, { band = true, harm = true, height = 250 } = {}) {
  const width = Math.max(260, box.clientWidth);
  const known = runs.map((run) => ({ run, points: run.points.filter((p) => p[2] !== null) })).filter((r) => r.points.length);
  const harmed = harm && runs.some((run) => run.points.some((p) => p[4] !== null));
  const top = 8, left = 46, right = 14, floor = height - 24, below = harmed ? 78 : 0;
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height + below}`, role: "img", "aria-label": words(known) });
  if (!known.length) {
    svg.append(draw("text", { x: width / 2, y: height / 2, class: "mid" }, "no policy has been tested yet"));
    box.replaceChildren(svg);
    return;
  }
  let low = Infinity, high = -Infinity, most = 1;
  for (const { points } of known) {
    for (const [, x, mean, std] of points) {
      const spread = band ? std ?? 0 : 0;
      low = Math.min(low, mean - spread);
      high = Math.max(high, mean + spread);
      most = Math.max(most, x);
    }
  }
  if (low >= 0 && low < 0.5 * high) low = 0;
  if (high - low < 1e-9) { high += 1; low -= 1; }
  const end = Math.max(...runs.map((run) => (run.points.at(-1)?.[1] >= 0.25 * run.total || run.state === "finished" ? Math.max(run.total, most) : 0)), most);
  const far = Math.max(end, 1);
  const X = (x) => left + (x / far) * (width - left - right);
  const Y = (y) => floor - ((y - low) / (high - low)) * (floor - top);
  for (const y of ticks(low, high, 5)) {
    svg.append(draw("line", { x1: left, x2: width - right, y1: Y(y), y2: Y(y), class: "grid" }));
    svg.append(draw("text", { x: left - 7, y: Y(y) + 4, class: "end" }, short(y)));
  }
  for (const x of ticks(0, far, width / 110)) svg.append(draw("text", { x: X(x), y: floor + 16, class: "mid" }, short(x)));
  for (const { run, points } of known) {
    const { cls, dash } = style(run.id);
    const group = draw("g", { class: cls });
    if (band) {
      const up = points.map((p) => `${X(p[1]).toFixed(1)} ${Y(p[2] + (p[3] ?? 0)).toFixed(1)}`);
      const down = points.map((p) => `${X(p[1]).toFixed(1)} ${Y(p[2] - (p[3] ?? 0)).toFixed(1)}`).reverse();
      group.append(draw("path", { d: `M${[...up, ...down].join("L")}Z`, fill: "currentColor", "fill-opacity": 0.16 }));
    }
    const line = points.map((p) => `${X(p[1]).toFixed(1)} ${Y(p[2]).toFixed(1)}`).join("L");
    group.append(draw("path", { d: `M${line}`, fill: "none", stroke: "currentColor", "stroke-width": 2, "stroke-linejoin": "round", "stroke-dasharray": dash }));
    const last = points.at(-1);
    group.append(draw("circle", { cx: X(last[1]), cy: Y(last[2]), r: 3.5, fill: "currentColor" }));
    svg.append(group);
  }
  if (harmed) drawHarm(svg, runs, { X, left, right, width, top: height + 14, floor: height + below - 8 });
  box.replaceChildren(svg);
  follow(box, svg, known, { X, Y, top, floor: harmed ? height + below - 8 : floor, width });
}

function drawHarm(svg, runs, { X, left, right, width, top, floor }) {
  const all = runs.flatMap((run) => run.points.map((p) => p[4]).filter((h) => h !== null));
  const high = Math.max(2, ...all) * 1.05;
  const Y = (y) => floor - (Math.min(y, high) / high) * (floor - top);
  for (const [y, cls] of [[0, "grid"], [1, "limit"]]) svg.append(draw("line", { x1: left, x2: width - right, y1: Y(y), y2: Y(y), class: cls }));
  svg.append(draw("text", { x: left - 7, y: Y(1) + 4, class: "end" }, "1"));
  svg.append(draw("text", { x: left - 7, y: Math.min(top + 4, Y(1) - 9), class: "end" }, short(high)));
  svg.append(draw("text", { x: left + 2, y: top - 1, class: "strong" }, "harm (1: chance alone)"));
  for (const run of runs) {
    const { cls, dash } = style(run.id);
    const line = run.points.filter((p) => p[4] !== null).map((p) => `${X(p[1]).toFixed(1)} ${Y(p[4]).toFixed(1)}`);
    if (line.length) svg.append(draw("path", { d: `M${line.join("L")}`, fill: "none", stroke: "currentColor", "stroke-width": 1.6, "stroke-dasharray": dash, class: cls }));
  }
}

function words(known) {
  if (!known.length) return "Test return against trajectories: nothing yet";
  const each = known.map(({ run, points }) => `${run.name}: ${short(points.at(-1)[2])} after ${points.at(-1)[1]} trajectories, from ${short(points[0][2])}`);
  return `Test return against trajectories. ${each.slice(0, 12).join("; ")}`;
}

// The nearest point of each curve to where the pointer is.
function follow(box, svg, known, { X, Y, top, floor, width }) {
  const hair = draw("line", { y1: top, y2: floor, class: "hair", visibility: "hidden" });
  const tip = make("div", { class: "tip", hidden: "" });
  svg.append(hair);
  box.append(tip);
  svg.addEventListener("pointermove", (event) => {
    const at = ((event.clientX - svg.getBoundingClientRect().left) / svg.getBoundingClientRect().width) * width;
    const near = known.map(({ run, points }) => {
      const p = points.reduce((best, q) => (Math.abs(X(q[1]) - at) < Math.abs(X(best[1]) - at) ? q : best));
      return { run, p };
    });
    const x = X(near[0].p[1]);
    hair.setAttribute("x1", x);
    hair.setAttribute("x2", x);
    hair.setAttribute("visibility", "visible");
    tip.replaceChildren(...near.slice(0, 12).map(({ run, p }) => {
      const spread = p[3] === null ? "" : ` ± ${short(p[3])}`;
      const harm = p[4] === null ? "" : `, harm ${short(p[4])}`;
      const which = known.length > 1 ? `${run.name}: ` : "";
      return make("div", { class: known.length > 1 ? style(run.id).cls : "" }, `${which}${short(p[2])}${spread} at ${p[1]} trajectories, round ${p[0]}${harm}`);
    }));
    tip.hidden = false;
    const wide = tip.offsetWidth, scale = box.clientWidth / width;
    tip.style.left = `${Math.max(0, Math.min(x * scale + 10, box.clientWidth - wide))}px`;
  });
  svg.addEventListener("pointerleave", () => { hair.setAttribute("visibility", "hidden"); tip.hidden = true; });
}

// The last round as the aggregator saw it: how far each agent's gradient lay from the centre, and who is out.
export function picture(box, run, height = 250) {
  const width = Math.max(260, box.clientWidth), left = 46, right = 14, top = 20, floor = height - 34;
  const rows = run.rows, known = rows.map((r) => r.distance).filter((d) => d !== null);
  const out = rows.filter((r) => r.outcome && r.outcome !== "accepted").map((r) => `${r.name} ${r.outcome}`);
  const label = `Round ${run.round}: ${rows.filter((r) => r.outcome === "accepted").length} of ${rows.length} accepted. ${out.slice(0, 20).join("; ")}`;
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  box.replaceChildren(svg);
  if (!rows.some((r) => r.outcome)) {
    svg.append(draw("text", { x: width / 2, y: height / 2, class: "mid" }, "no round is finished yet"));
    return;
  }
  const limit = run.threshold, positive = [...known, limit].filter((d) => d > 0);
  const most = Math.max(...positive, 1e-12), least = Math.min(...positive, most);
  const log = most / least > 30;
  const low = log ? Math.log10(least / 1.6) : 0, high = log ? Math.log10(most * 1.6) : most * 1.1;
  const Y = (d) => floor - ((log ? Math.log10(Math.max(d, 10 ** low)) : d) - low) / (high - low || 1) * (floor - top);
  const X = (i) => left + ((i + 0.5) / rows.length) * (width - left - right);
  const marks = log ? ticks(Math.ceil(low), Math.floor(high), 4).filter(Number.isInteger).map((e) => 10 ** e) : ticks(0, high, 4);
  for (const d of known.length ? marks : []) {
    svg.append(draw("line", { x1: left, x2: width - right, y1: Y(d), y2: Y(d), class: "grid" }));
    svg.append(draw("text", { x: left - 7, y: Y(d) + 4, class: "end" }, short(d)));
  }
  const room = (width - left - right) / rows.length, r = Math.max(2.5, Math.min(6, room / 3));
  const every = Math.ceil(26 / room);
  const lost = rows.some((row) => row.distance === null);
  if (lost) svg.append(draw("line", { x1: left, x2: width - right, y1: floor + 8, y2: floor + 8, class: "grid" }));
  rows.forEach((row, i) => {
    const y = row.distance === null ? floor + 8 : Y(row.distance);
    const group = draw("g", { class: colour(row.outcome) });
    if (row.distance !== null) group.append(draw("line", { x1: X(i), x2: X(i), y1: floor, y2: y, stroke: "currentColor", "stroke-opacity": 0.3, "stroke-width": Math.min(3, r / 2) }));
    group.append(mark(row.outcome, X(i), y, r));
    const far = row.far === null ? "" : `, ${short(row.far)} of the threshold`;
    group.append(draw("title", {}, `${row.name}${row.byzantine ? " (Byzantine)" : ""}: ${row.outcome}, distance ${short(row.distance)}${far}`));
    svg.append(group);
    if (i % every === 0) svg.append(draw("text", { x: X(i), y: floor + 25, class: row.byzantine ? "mid strong" : "mid" }, row.name.replace(/^(agent |site-)/, "").slice(0, Math.max(2, Math.floor((room * every) / 7)))));
    if (row.byzantine) svg.append(draw("path", { d: `M${X(i) - Math.min(room / 2 - 1, 11)} ${floor + 29}h${2 * Math.min(room / 2 - 1, 11)}`, stroke: "currentColor", "stroke-width": 2.5, class: "c-turned-away" }));
  });
  if (limit !== null && known.length) {
    svg.append(draw("line", { x1: left, x2: width - right, y1: Y(limit), y2: Y(limit), class: "limit" }));
    svg.append(draw("text", { x: width - right, y: Y(limit) - 5, class: "end strong" }, `threshold ${short(limit)}`));
  }
  if (log) svg.append(draw("text", { x: left, y: 11 }, "log scale"));
  if (!known.length) svg.append(draw("text", { x: width / 2, y: height / 2, class: "mid" }, "this rule measures no distances"));
}

// The outcomes of the last rounds, one small mark each, the newest at the right.
export function strip(recent) {
  const step = 6.5, width = Math.max(1, recent.length) * step;
  const counts = {};
  for (const [, outcome] of recent) counts[outcome] = (counts[outcome] ?? 0) + 1;
  const label = `Last ${recent.length} rounds: ${Object.entries(counts).map(([word, n]) => `${n} ${word}`).join(", ")}`;
  const svg = draw("svg", { viewBox: `0 0 ${width} 14`, width, height: 14, role: "img", "aria-label": label });
  recent.forEach(([round, outcome], i) => {
    const group = draw("g", { class: colour(outcome) });
    const x = (i + 0.5) * step;
    if (outcome === "accepted") group.append(draw("rect", { x: x - 1.6, y: 4.4, width: 3.2, height: 5.2, rx: 1.2, fill: "currentColor", "fill-opacity": 0.8 }));
    else group.append(draw("rect", { x: x - 2.6, y: 0.5, width: 5.2, height: 13, fill: "currentColor", "fill-opacity": 0.16 }), mark(outcome, x, 7, 2.4));
    group.append(draw("title", {}, `round ${round}: ${outcome}`));
    svg.append(group);
  });
  return svg;
}
