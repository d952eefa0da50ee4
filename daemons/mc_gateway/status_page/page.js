// Asks for data.json every two seconds and draws it. Whatever comes from the cluster becomes a text node or a number
// of an attribute, never markup: names are chosen by whoever may join.
"use strict";

const POLL_MS = 2000;
const TIMEOUT_MS = 8000;
const TIER_NAMES = { dram: "DRAM", ssd: "SSD", object: "Object" };
const STATE_CLASSES = { alive: "good", done: "good", running: "", suspect: "warn", dead: "bad", failed: "bad" };
const SVG = "http://www.w3.org/2000/svg";

const byId = (id) => document.getElementById(id);
const own = (table, name) => (Object.hasOwn(table, name) ? table[name] : "");

function make(tag, className, ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return element;
}

function draw(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...children);
  return element;
}

function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
  return `${unit && value < 100 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

function seconds(value) {
  if (value === null || !Number.isFinite(value)) return "–";
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 60) return `${Number(value.toFixed(value < 10 ? 2 : 1))} s`;
  if (value < 3600) return `${Math.round(value / 6) / 10} min`;
  return `${(value / 3600).toFixed(1)} h`;
}

const count = (value) => Math.round(value).toLocaleString("en");
const share = (part, whole) => (whole > 0 ? Math.min(1, part / whole) : 0);
const percent = (part, whole) => (whole > 0 ? `${Math.round(100 * share(part, whole))}%` : "–");
const empty = (text) => make("p", "empty", text);

function showFigures(data) {
  const running = data.requests.filter((request) => request.state === "running").length;
  const prompt = data.requests.reduce((sum, request) => sum + request.prompt_tokens, 0);
  const reused = data.requests.reduce((sum, request) => sum + request.reused_tokens, 0);
  const figures = [
    [percent(data.num_hits, data.num_lookups), "of blocks found, ever"],
    [percent(reused, prompt), "of recent tokens reused"],
    [seconds(data.median_ttft_s), "median TTFT, recent"],
    [count(running), "requests running"],
    [count(data.num_blocks), `blocks, ${count(data.num_replicas)} replicas`],
    [count(data.num_stored), `stored, ${count(data.num_evicted)} evicted`],
  ];
  byId("figures").replaceChildren(...figures.map(([value, name]) =>
    make("div", "figure", make("b", "", value), make("span", "", name))));
}

const WIDE = 520, HIGH = 190, LEFT = 48, BOTTOM = 26, TOP = 10, RIGHT = 12;

function axes(label, yTicks, xTicks) {
  const chart = draw("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img", "aria-label": label });
  for (const [y, text] of yTicks) {
    chart.append(draw("line", { class: "grid", x1: LEFT, x2: WIDE - RIGHT, y1: y, y2: y }),
      draw("text", { x: LEFT - 6, y: y + 4, "text-anchor": "end" }, text));
  }
  xTicks.forEach(([x, text], index) => {
    const anchor = index === xTicks.length - 1 ? "end" : index ? "middle" : "start";
    chart.append(draw("text", { x, y: HIGH - 6, "text-anchor": anchor }, text));
  });
  return chart;
}

function showHits(data) {
  const asked = data.hits.filter((sample) => sample.num_lookups > 0);
  if (!asked.length) {
    byId("hits").replaceChildren(empty("No block has been looked up in the last 20 minutes."));
    return;
  }
  const longest = Math.max(60, ...data.hits.map((sample) => sample.age_s));
  const x = (age) => LEFT + (WIDE - LEFT - RIGHT) * (1 - age / longest);
  const y = (ratio) => TOP + (HIGH - TOP - BOTTOM) * (1 - ratio);
  const chart = axes("Hit ratio over time", [0, 0.5, 1].map((r) => [y(r), `${100 * r}%`]),
    [[x(longest), `${seconds(longest)} ago`], [x(longest / 2), seconds(longest / 2)], [x(0), "now"]]);
  const points = asked.map((sample) => [x(sample.age_s), y(share(sample.num_hits, sample.num_lookups))]);
  const line = points.map((point) => point.map((value) => value.toFixed(1)).join(",")).join(" ");
  const [first, last] = [points[0][0].toFixed(1), points[points.length - 1][0].toFixed(1)];
  chart.append(
    draw("polygon", { class: "under", points: `${first},${y(0)} ${line} ${last},${y(0)}` }),
    draw("polyline", { class: "trace", points: line }),
    ...points.map(([px, py]) => draw("circle", { class: "dot", cx: px.toFixed(1), cy: py.toFixed(1), r: 2.5 })));
  byId("hits").replaceChildren(chart);
}

function showTiers(data) {
  const tiers = data.tiers.map((tier) => {
    const bar = make("progress", own(TIER_NAMES, tier.tier) && tier.tier);
    bar.max = 1;
    bar.value = share(tier.used_bytes, tier.capacity_bytes);
    const room = tier.capacity_bytes ? `${bytes(tier.used_bytes)} of ${bytes(tier.capacity_bytes)}` : bytes(tier.used_bytes);
    bar.setAttribute("aria-label", `${tier.tier}: ${room}`);
    return make("div", "tier", make("div", "tier-line", make("b", "", own(TIER_NAMES, tier.tier) || tier.tier),
      make("span", "", `${room} · ${count(tier.num_blocks)} blocks`)), bar);
  });
  const models = Object.entries(data.blocks_by_model).slice(0, 20).map(([model, blocks]) =>
    make("div", "tier-line", make("span", "", model), make("span", "", `${count(blocks)} blocks`)));
  byId("tiers").replaceChildren(...(tiers.length ? tiers : [empty("No cache node has joined.")]), ...models);
}

function squares(tier) {
  const used = Math.ceil(100 * share(tier.used_bytes, tier.capacity_bytes));
  const map = draw("svg", { viewBox: "0 0 119 59", role: "img", "aria-label": `${used}% used` });
  for (let index = 0; index < 100; index += 1) {
    const place = { x: 6 * (index % 20), y: 12 * Math.floor(index / 20), width: 5, height: 11, rx: 1 };
    if (index < used) place.class = "used";
    map.append(draw("rect", place));
  }
  const className = own(TIER_NAMES, tier.tier) && tier.tier;
  return make("div", className,
    make("div", "", `${own(TIER_NAMES, tier.tier) || tier.tier} ${percent(tier.used_bytes, tier.capacity_bytes)}`), map);
}

function showMap(data) {
  const cells = data.nodes.map((node) => [node, node.tiers.filter((tier) => tier.capacity_bytes > 0)])
    .filter(([, tiers]) => tiers.length)
    .map(([node, tiers]) => make("div", "cell", make("div", "cell-name", node.node), ...tiers.map(squares)));
  byId("map").replaceChildren(cells.length ? make("div", "cells", ...cells) : empty("No cache node has joined."));
}

function showScatter(data) {
  const known = data.requests.filter((request) => request.actual_ttft_s !== null && request.predicted_ttft_s !== null);
  if (!known.length) {
    byId("scatter").replaceChildren(empty("No request has had its first token yet."));
    return;
  }
  const most = 1.05 * Math.max(0.001, ...known.flatMap((r) => [r.predicted_ttft_s, r.actual_ttft_s]));
  const x = (value) => LEFT + (WIDE - LEFT - RIGHT) * value / most;
  const y = (value) => TOP + (HIGH - TOP - BOTTOM) * (1 - value / most);
  const chart = axes("Predicted and actual TTFT", [0, most / 2, most].map((v) => [y(v), seconds(v)]),
    [[x(0), "predicted →"], [x(most / 2), seconds(most / 2)], [x(most), seconds(most)]]);
  chart.append(draw("line", { class: "diagonal", x1: x(0), y1: y(0), x2: x(most), y2: y(most) }),
    ...known.map((r) => draw("circle", { class: "dot", cx: x(r.predicted_ttft_s).toFixed(1), cy: y(r.actual_ttft_s).toFixed(1), r: 4 })));
  byId("scatter").replaceChildren(chart,
    make("p", "note below", "On the dashed line a prediction was right; above it the first token came later."));
}

// A column: its name, its value for a row, whether it is a number, and the class of a cell.
function table(columns, rows) {
  const head = make("tr", "", ...columns.map(([name, , isNumber]) => {
    const cell = make("th", isNumber ? "number" : "", name);
    cell.scope = "col";
    return cell;
  }));
  const body = rows.map((row) => make("tr", "", ...columns.map(([name, value, isNumber, className]) => {
    const shown = value(row);
    const classes = [isNumber ? "number" : "", className ? className(row) : "", shown === "" ? "blank" : ""];
    const cell = make("td", classes.filter(Boolean).join(" "), make("span", "", shown));
    cell.dataset.label = name;
    return cell;
  })));
  return make("table", "", make("thead", "", head), make("tbody", "", ...body));
}

const NODE_COLUMNS = [
  ["node", (n) => n.node], ["role", (n) => n.role], ["host", (n) => n.host],
  ["state", (n) => (n.is_draining ? `${n.state}, draining` : n.state), false, (n) => own(STATE_CLASSES, n.state)],
  ["memory", (n) => n.tiers.map((t) => `${own(TIER_NAMES, t.tier) || t.tier} ${percent(t.used_bytes, t.capacity_bytes)}`).join(", ")],
  ["running", (n) => n.num_running || "", true], ["queued", (n) => n.num_queued || "", true],
  ["heard", (n) => seconds(n.last_beat_s), true],
];
const REQUEST_COLUMNS = [
  ["request", (r) => r.request_id], ["state", (r) => r.state, false, (r) => own(STATE_CLASSES, r.state)],
  ["age", (r) => seconds(r.age_s), true], ["prompt", (r) => count(r.prompt_tokens), true],
  ["reused", (r) => percent(r.reused_tokens, r.prompt_tokens), true], ["answer", (r) => count(r.generated_tokens), true],
  ["predicted", (r) => seconds(r.predicted_ttft_s), true], ["TTFT", (r) => seconds(r.actual_ttft_s), true],
  ["prefill", (r) => r.prefill ?? "-"], ["decode", (r) => r.decode ?? "-"],
];

function showTables(data) {
  byId("nodes").replaceChildren(data.nodes.length ? table(NODE_COLUMNS, data.nodes) : empty("No node has joined."),
    ...(data.num_nodes > data.nodes.length ? [empty(`and ${count(data.num_nodes - data.nodes.length)} more`)] : []));
  byId("requests").replaceChildren(data.requests.length ? table(REQUEST_COLUMNS, data.requests) : empty("No request yet."));
}

function say(health, className, banner) {
  byId("health").textContent = health;
  byId("health").className = `badge ${className}`;
  byId("banner").textContent = banner;
  byId("banner").hidden = !banner;
}

function show(data) {
  const silent = data.nodes.filter((node) => node.state !== "alive").map((node) => node.node);
  if (data.why_unhealthy) say("not serving", "bad", data.why_unhealthy);
  else if (silent.length) say("degraded", "warn", `Not heard of: ${silent.slice(0, 10).join(", ")}`);
  else say("serving", "good", "");
  byId("where").textContent = `${data.gateway} · master ${data.master}, incarnation ${data.incarnation}`;
  byId("footer").textContent = `${data.software} · read only · asks every 2 s while it is seen`;
  for (const part of [showFigures, showHits, showTiers, showMap, showScatter, showTables]) part(data);
}

async function poll() {
  if (!document.hidden) {
    try {
      const reply = await fetch("status/data.json", { signal: AbortSignal.timeout(TIMEOUT_MS), credentials: "omit" });
      const data = await reply.json();
      if (!reply.ok) throw new Error(data.error ? data.error.message : `HTTP ${reply.status}`);
      show(data);
    } catch (error) {
      say("no answer", "bad", `What is below may be old: ${error.message}`);
    }
  }
  setTimeout(poll, POLL_MS);
}

document.addEventListener("DOMContentLoaded", poll);
