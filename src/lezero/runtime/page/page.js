"use strict";
const F = JSON.parse(document.getElementById("facts").textContent);
const W = F.words, $ = (id) => document.getElementById(id), main = $("main");
const OP = 0, TYPE = 1, ATTRS = 2, LAYER = 3, LINE = 4, NAME = 5, BYTES = 6, INPUTS = 7;  // places in a node's row
const ROW = 24;  // pixels
const word = (n, what) => W[F.nodes[n][what]];
const inputsOf = (n) => F.nodes[n].slice(INPUTS);
const esc = (s) => String(s).replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" }[c]));
const count = (n) => n.toLocaleString("en");
const plural = (n, what) => `${count(n)} ${what}${n === 1 ? "" : "s"}`;

function bytes(n) {
  for (const unit of ["B", "KiB", "MiB"]) {
    if (n < 1024) return unit === "B" ? `${n} B` : `${n.toFixed(1)} ${unit}`;
    n /= 1024;
  }
  return `${n.toFixed(1)} GiB`;
}

function flops(n) {
  for (const unit of ["", "k", "M", "G"]) {
    if (n < 1000) return `${unit ? n.toFixed(1) : n} ${unit}FLOP`;
    n /= 1000;
  }
  return `${n.toFixed(1)} TFLOP`;
}

function tally(items) {
  const found = new Map();
  for (const x of items) found.set(x, (found.get(x) || 0) + 1);
  return [...found].sort((a, b) => b[1] - a[1]);
}

const tallied = (items) => tally(items).map(([x, n]) => (n === 1 ? x : `${n} ${x}`)).join(", ");
const short = (line) => line.split(/[\\/]/).pop();

// -- search -----------------------------------------------------------------------------------------------------------

let wanted = [];
const matches = (text) => { const t = text.toLowerCase(); return wanted.every((w) => t.includes(w)); };
const textOfNode = (n) => [OP, TYPE, ATTRS, LAYER, LINE, NAME].map((k) => word(n, k)).join(" ");
const textOfKernel = (k) => [k.name, ...k.operations, ...k.layers, ...k.lines, ...k.reads, ...k.writes].join(" ");

// -- a list that draws only the rows in sight ---------------------------------------------------------------------------

class List {
  constructor(box, draw, choose) {
    this.box = box; this.draw = draw; this.choose = choose; this.rows = []; this.chosen = -1;
    box.className = "list"; box.tabIndex = 0;
    this.inner = box.appendChild(document.createElement("div"));
    box.addEventListener("scroll", () => this.paint());
    box.addEventListener("click", (e) => {
      const row = e.target.closest(".row");
      if (row) this.pick(+row.dataset.at);
    });
    box.addEventListener("keydown", (e) => {
      const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 20, PageUp: -20 }[e.key];
      if (!step) return;
      e.preventDefault();
      this.pick(Math.max(0, Math.min(this.rows.length - 1, this.chosen + step)), true);
    });
    new ResizeObserver(() => this.paint()).observe(box);
  }
  show(rows) { this.rows = rows; this.inner.style.height = `${rows.length * ROW}px`; this.paint(); }
  pick(at, byKey = false) {
    if (!this.rows[at]) return;
    this.chosen = at; this.choose(this.rows[at], byKey); this.reveal(at);
  }
  reveal(at) {
    this.chosen = at;
    const top = at * ROW, box = this.box;
    if (top < box.scrollTop || top + ROW > box.scrollTop + box.clientHeight) box.scrollTop = Math.max(0, top - box.clientHeight / 3);
    this.paint();
  }
  paint() {
    const first = Math.max(0, Math.floor(this.box.scrollTop / ROW) - 5);
    const last = Math.min(this.rows.length, first + Math.ceil(this.box.clientHeight / ROW) + 12);
    let text = "";
    for (let at = first; at < last; at++) text += this.draw(this.rows[at], at, at === this.chosen);
    this.inner.innerHTML = text || (this.rows.length ? "" : '<div class="nothing">Nothing found.</div>');
  }
}

// -- overview ---------------------------------------------------------------------------------------------------------

function overview() {
  const b = F.before, a = F.after;
  const fact = (what, before, after) =>
    `<div class="fact"><span class="soft">${what}</span><strong>${after ?? before}</strong>${after == null ? "" : `<s>${before} as recorded</s>`}</div>`;
  let text = `<h2>Before and after</h2><div class="facts">
    ${fact("operations", count(b.operations))}${fact("kernels", count(b.kernels), a && count(a.kernels))}
    ${fact("bytes moved", bytes(b.moved_bytes), a && bytes(a.moved_bytes))}${fact("peak memory", bytes(b.peak_bytes), a && bytes(a.peak_bytes))}
    ${a ? fact("of which arena", bytes(a.arena_bytes)) : ""}</div>
    <p class="soft">As recorded: what the program, its gradients and its optimizer call; one kernel for each that is no view, every
    result kept until its last reader is done. After it: primitives, which passes take operations apart into, views among them; a
    kernel computes many. ${besides ? `Kernels that run at the same time count as one: ${count(F.kernels.length)} are listed, ${count(besides)} of them beside the one before. ` : ""}FLOP
    is arithmetic: what a kernel has to add and multiply. Nothing was run for this page.</p>`;
  const sizes = F.passes.map((p, at) => computing(at).length), most = Math.max(1, ...sizes);
  text += `<h2>Operations after each pass</h2><table><tr><th>pass</th><th class="n">operations</th><th class="n">change</th><th></th><th>most</th></tr>`;
  F.passes.forEach((p, at) => {
    const change = at ? sizes[at] - sizes[at - 1] : 0;
    const top = tally(computing(at).map((n) => word(n, OP))).slice(0, 6).map(([op, n]) => `${n} ${op}`).join(", ");
    text += `<tr><td class="word"><a data-pass="${at}">${esc(p.name)}</a></td><td class="n">${count(sizes[at])}</td><td class="n">${change > 0 ? "+" : ""}${change ? count(change) : ""}</td>
      <td style="width:160px"><span class="meter" style="width:${(150 * sizes[at]) / most}px"></span></td><td>${esc(top)}</td></tr>`;
  });
  text += "</table>";
  if (F.kernels.length) {
    const order = F.kernels.map((k, at) => at).sort((x, y) => F.kernels[y].moved_bytes - F.kernels[x].moved_bytes).slice(0, 12);
    const top = F.kernels[order[0]].moved_bytes || 1;
    text += `<h2>Kernels that move most</h2><table><tr><th class="n">#</th><th>kernel</th><th class="n">bytes</th><th></th><th class="n">arithmetic</th><th>layer</th></tr>`;
    for (const at of order) {
      const k = F.kernels[at];
      text += `<tr><td class="n">${at + 1}</td><td><a data-kernel="${at}">${esc(k.name)}</a></td><td class="n">${bytes(k.moved_bytes)}</td>
        <td style="width:110px"><span class="meter" style="width:${(100 * k.moved_bytes) / top}px"></span></td><td class="n">${flops(k.flops)}</td><td>${esc(k.layers[0] || "")}</td></tr>`;
    }
    text += "</table>";
  }
  if (F.held.length) {
    text += `<h2>Computed and kept only because a variable still holds it</h2><table>`;
    for (const h of F.held) text += `<tr><td>${esc(h.variable)}</td><td>${esc(h.value)}</td></tr>`;
    text += "</table>";
  }
  main.innerHTML = `<div class="scroll">${text}</div>`;
}

// -- graphs -----------------------------------------------------------------------------------------------------------

const besides = F.kernels.filter((k) => k.beside).length;  // kernels that run at the same time as the one before, and count with it
const kernelOf = new Map();
F.kernels.forEach((k, at) => k.nodes.forEach((n) => kernelOf.set(n, at)));
const noWork = new Set(["input", "constant"]);
const computing = (at) => F.passes[at].nodes.filter((n) => !noWork.has(word(n, OP)));

const graphs = { at: 0, by: LAYER, changes: false, open: new Set([""]), chosen: null };
const hasLayers = F.nodes.some((n) => W[n[LAYER]]), hasLines = F.nodes.some((n) => W[n[LINE]]);
if (!hasLayers) graphs.by = LINE;
const usersOf = new Map();  // pass -> node -> who reads it

function users(at) {
  if (!usersOf.has(at)) {
    const found = new Map();
    for (const n of F.passes[at].nodes) for (const x of new Set(inputsOf(n))) (found.get(x) || found.set(x, []).get(x)).push(n);
    usersOf.set(at, found);
  }
  return usersOf.get(at);
}

const signature = (n) => [OP, TYPE, ATTRS, LAYER, LINE].map((k) => F.nodes[n][k]).join();
const differences = new Map();

function difference(at) {  // what a pass brought and what it took, told by operation, extents, attributes and place
  if (!differences.has(at)) {
    const fresh = new Set(), gone = [];
    if (at) {
      const left = new Map();
      for (const n of F.passes[at - 1].nodes) (left.get(signature(n)) || left.set(signature(n), []).get(signature(n))).push(n);
      for (const n of F.passes[at].nodes) { const same = left.get(signature(n)); if (same && same.length) same.pop(); else fresh.add(n); }
      for (const same of left.values()) gone.push(...same);
    }
    differences.set(at, { fresh, gone });
  }
  return differences.get(at);
}

const CUT = "\u0001";  // between the parts of a group's key

function pathOf(n) {
  const text = word(n, graphs.by);
  if (graphs.by === LINE) { const cut = text.lastIndexOf(":"); return text ? [text.slice(0, cut), text] : ["(no line)"]; }
  return text ? text.split(".") : ["(outside of layers)"];
}

function tree() {
  const { fresh, gone } = difference(graphs.at);
  const root = { key: "", label: "", kids: new Map(), nodes: [], size: 0, bytes: 0 };
  const reserve = (path) => {
    const groups = [];
    let here = root, key = "";
    for (const part of path) {
      key = key ? key + CUT + part : part;
      if (!here.kids.has(part)) here.kids.set(part, { key, label: part, kids: new Map(), nodes: [], size: 0, bytes: 0 });
      here = here.kids.get(part);
      groups.push(here);
    }
    return groups;
  };
  const put = (n, state) => {
    if (graphs.changes && !state) return;
    if (wanted.length && !matches(textOfNode(n))) return;
    const groups = reserve(pathOf(n));
    for (const g of groups) { g.size++; if (state !== "gone") g.bytes += F.nodes[n][BYTES]; }
    groups[groups.length - 1].nodes.push([n, state]);
  };
  if (graphs.by === LAYER) for (const layer of F.layers) reserve(layer.split("."));  // in the order they were called
  for (const n of F.passes[graphs.at].nodes) put(n, fresh.has(n) ? "new" : "");
  for (const n of gone) if (graphs.changes) put(n, "gone");
  const rows = [], openAll = wanted.length > 0;
  const walk = (group, depth) => {
    for (const kid of group.kids.values()) {
      if (!kid.size) continue;
      const open = openAll || graphs.open.has(kid.key);
      rows.push({ group: kid, depth, open });
      if (open) walk(kid, depth + 1);
    }
    for (const [n, state] of group.nodes) {
      const last = rows[rows.length - 1];
      if (state === "gone" && last && last.state === state && signature(last.node) === signature(n)) last.times++;
      else rows.push({ node: n, state, depth, times: 1 });
    }
  };
  walk(root, 0);
  return rows;
}

function drawGraphRow(r, at, chosen) {
  const start = `<div class="row ${r.state || ""} ${chosen ? "chosen" : ""}" data-at="${at}" style="top:${at * ROW}px;padding-left:${8 + 16 * r.depth}px">`;
  if (r.group) {
    const label = graphs.by === LINE && r.depth ? short(r.group.label) : r.group.label;
    return `${start}<span class="twist">${r.open ? "▾" : "▸"}</span><span class="grow"><b>${esc(label)}</b></span><span class="end">${count(r.group.size)}</span></div>`;
  }
  const n = r.node, k = kernelOf.get(n);
  const mark = { new: "+", gone: "−" }[r.state] || "";
  const extra = word(n, NAME) || word(n, ATTRS), times = r.times > 1 ? `${r.times} × ` : "";
  return `${start}<span class="twist">${mark}</span><span class="grow">${times}<b>${esc(word(n, OP))}</b> ${esc(word(n, TYPE))} <span class="type">${esc(extra)}</span></span>
    <span class="end">${k === undefined || F.passes[graphs.at].name !== "scheduled" ? "" : `kernel ${k + 1}`}</span></div>`;
}

let graphList = null;

function graphTab() {
  const passes = F.passes.map((p, at) => `${at ? '<span class="arrow">→</span>' : ""}<button data-show="${at}" aria-pressed="${at === graphs.at}">${esc(p.name)} <small>${count(p.nodes.length)}</small></button>`).join("");
  const by = hasLayers && hasLines ? `<select id="by" aria-label="Group by"><option value="${LAYER}">by layer</option><option value="${LINE}">by line</option></select>` : "";
  main.innerHTML = `<div class="bar">${passes}<label title="Nodes this pass brought, and those it took"><input id="changes" type="checkbox" />changes only</label>${by}<button id="shut">collapse</button><span class="soft" id="said"></span></div><div class="two"><div id="list"></div><div class="detail" id="detail"></div></div>`;
  graphList = new List($("list"), drawGraphRow, (r, byKey) => {
    graphs.chosen = r.group ? r.group.key : r.node;
    if (r.group && !byKey) {
      if (graphs.open.has(r.group.key)) graphs.open.delete(r.group.key); else graphs.open.add(r.group.key);
      graphList.show(tree());
    }
    graphDetail(r);
  });
  $("changes").checked = graphs.changes;
  $("changes").onchange = (e) => { graphs.changes = e.target.checked; refreshGraph(); };
  $("shut").onclick = () => { graphs.open.clear(); refreshGraph(); };
  if ($("by")) { $("by").value = graphs.by; $("by").onchange = (e) => { graphs.by = +e.target.value; graphs.open.clear(); refreshGraph(); }; }
  if (!graphs.open.size || graphs.open.has("")) {
    graphs.open = new Set(tree().filter((r) => r.group && r.depth === 0 && r.group.size < F.passes[graphs.at].nodes.length + 1).slice(0, 1).map((r) => r.group.key));
  }
  refreshGraph();
}

function refreshGraph() {
  const rows = tree(), { fresh, gone } = difference(graphs.at);
  $("said").textContent = graphs.at ? `${plural(fresh.size, "node")} new, ${count(gone.length)} gone since ${F.passes[graphs.at - 1].name}` : "as the program recorded it";
  graphList.show(rows);
  const at = rows.findIndex((r) => (r.group ? r.group.key : r.node) === graphs.chosen);
  if (at >= 0) { graphList.reveal(at); graphDetail(rows[at]); } else if (rows.length) graphDetail(rows[0]);
}

function goToNode(n) {
  if (wanted.length && !matches(textOfNode(n))) setSearch("");
  let key = "";
  for (const part of pathOf(n)) { key = key ? key + CUT + part : part; graphs.open.add(key); }
  graphs.changes = false; $("changes").checked = false;
  graphs.chosen = n;
  refreshGraph();
}

const describe = (n) => ({ title: word(n, OP) === "input" ? word(n, NAME) || "input" : word(n, OP), below: word(n, TYPE), go: n });

function graphDetail(r) {
  const box = $("detail");
  if (r.group) {
    const all = nodesBelow(r.group), inside = all.filter(([, state]) => state !== "gone").map(([n]) => n), set = new Set(inside);
    const readers = users(graphs.at);
    const from = [...new Set(inside.flatMap(inputsOf))].filter((n) => !set.has(n));
    const to = [...new Set(inside.flatMap((n) => readers.get(n) || []))].filter((n) => !set.has(n));
    const around = (nodes) => (nodes.length > MOST ? grouped(nodes, r.group.key.split(CUT).length) : nodes.map(describe));
    box.innerHTML = `<h3>${esc(r.group.key.split(CUT).join(graphs.by === LINE ? " › " : "."))}</h3>
      <dl><dt>nodes</dt><dd>${count(r.group.size)}</dd><dt>values</dt><dd>${bytes(r.group.bytes)} if all were stored</dd><dt>operations</dt><dd>${esc(tallied(all.map(([n, state]) => (state === "gone" ? "−" : "") + word(n, OP))))}</dd></dl>
      ${diagram(around(from), { title: short(r.group.key.split(CUT).slice(graphs.by === LINE ? -1 : -2).join(".")), below: plural(r.group.size, "node") }, around(to))}`;
    return;
  }
  const n = r.node, k = F.passes[graphs.at].name === "scheduled" ? kernelOf.get(n) : undefined;
  const line = word(n, LINE), facts = [["value", `${word(n, TYPE)}, ${bytes(F.nodes[n][BYTES])}`]];
  if (word(n, NAME)) facts.push(["name", word(n, NAME)]);
  if (word(n, ATTRS)) facts.push(["attributes", word(n, ATTRS)]);
  if (word(n, LAYER)) facts.push(["layer", word(n, LAYER)]);
  if (line) facts.push(["line", line]);
  if (r.state) facts.push(["change", r.state === "new" ? "this pass brought it" : "this pass took it away"]);
  const kernel = k === undefined ? "" : `<dt>kernel</dt><dd><a data-kernel="${k}">${k + 1} ${esc(F.kernels[k].name)}</a></dd>`;
  box.innerHTML = `<h3>${esc(word(n, OP))}</h3><dl>${facts.map(([a, b]) => `<dt>${a}</dt><dd>${esc(b)}</dd>`).join("")}${kernel}</dl>
    ${diagram(inputsOf(n).map(describe), { title: word(n, OP), below: word(n, TYPE) }, (users(r.state === "gone" ? graphs.at - 1 : graphs.at).get(n) || []).map(describe))}`;
}

function grouped(nodes, depth) {  // many values as the groups they belong to
  const found = tally(nodes.map((n) => pathOf(n).slice(0, depth).join(CUT)));
  return found.map(([key, n]) => ({ title: short(key.split(CUT).join(".")), below: plural(n, "value"), group: key }));
}

function goToGroup(key) {
  const parts = key.split(CUT);
  parts.forEach((part, k) => graphs.open.add(parts.slice(0, k).join(CUT)));
  graphs.chosen = key;
  refreshGraph();
}

function nodesBelow(group) {
  const found = [...group.nodes];
  for (const kid of group.kids.values()) found.push(...nodesBelow(kid));
  return found;
}

const MOST = 14;  // boxes on a side

function diagram(left, here, right) {
  const wide = 158, high = 38, gap = 8, across = 560;
  const cut = (s, most) => esc(s.length > most ? `${s.slice(0, most - 1)}…` : s);
  const fold = (side) => (side.length > MOST ? [...side.slice(0, MOST - 1), { title: `and ${side.length - MOST + 1} more`, below: "" }] : side);
  left = fold(left); right = fold(right);
  const tall = Math.max(left.length, right.length, 1) * (high + gap);
  const place = (side, k) => (tall - side.length * (high + gap)) / 2 + k * (high + gap) + gap / 2;
  const target = (b) => (b.go !== undefined ? `data-node="${b.go}"` : b.group !== undefined ? `data-group="${esc(b.group)}"` : "");
  const box = (b, x, y, kind) => `<g class="${kind} ${target(b) && "go"}" ${target(b)}><title>${esc(b.title)} ${esc(b.below)}</title>
    <rect x="${x}" y="${y}" width="${wide}" height="${high}" rx="6" /><text x="${x + 9}" y="${y + (b.below ? 16 : 23)}">${cut(b.title, 23)}</text><text class="soft" x="${x + 9}" y="${y + 31}">${cut(b.below, 25)}</text></g>`;
  const middle = (across - wide) / 2, y0 = place([here], 0);
  const curve = (x1, y1, x2, y2) => `<path d="M${x1} ${y1} C${(x1 + x2) / 2} ${y1} ${(x1 + x2) / 2} ${y2} ${x2} ${y2}" />`;
  let text = "";
  left.forEach((b, k) => { text += curve(wide + 1, place(left, k) + high / 2, middle, y0 + high / 2); });
  right.forEach((b, k) => { text += curve(middle + wide, y0 + high / 2, across - wide - 1, place(right, k) + high / 2); });
  left.forEach((b, k) => { text += box(b, 1, place(left, k), ""); });
  right.forEach((b, k) => { text += box(b, across - wide - 1, place(right, k), ""); });
  return `<div class="soft">reads → is read by</div><svg viewBox="0 0 ${across} ${tall}" role="img">${text}${box(here, middle, y0, "here")}</svg>`;
}

// -- kernels ----------------------------------------------------------------------------------------------------------

const kernelView = { sort: "order", chosen: 0 };
let kernelList = null;
const again = new Map();  // kernel -> what it recomputes
for (const r of F.recomputed) if (r.again) (again.get(r.again - 1) || again.set(r.again - 1, []).get(r.again - 1)).push(r);

function kernelsTab() {
  if (!F.kernels.length) { main.innerHTML = '<div class="nothing">This backend does not make kernels.</div>'; return; }
  main.innerHTML = `<div class="bar"><span class="soft">Sort by</span><select id="sort" aria-label="Sort by"><option value="order">order of running</option><option value="bytes">bytes</option><option value="flops">arithmetic</option><option value="fused">operations fused</option></select><span class="soft" id="said"></span></div>
    <div class="two"><div id="list"></div><div class="detail" id="detail"></div></div>`;
  kernelList = new List($("list"), drawKernelRow, (at) => { kernelView.chosen = at; kernelDetail(at); });
  $("sort").value = kernelView.sort;
  $("sort").onchange = (e) => { kernelView.sort = e.target.value; refreshKernels(); };
  refreshKernels();
}

function refreshKernels() {
  const key = { bytes: (k) => -k.moved_bytes, flops: (k) => -k.flops, fused: (k) => -k.operations.length, order: () => 0 }[kernelView.sort];
  const rows = F.kernels.map((k, at) => at).filter((at) => !wanted.length || matches(textOfKernel(F.kernels[at])));
  rows.sort((a, b) => key(F.kernels[a]) - key(F.kernels[b]) || a - b);
  const sum = (f) => rows.reduce((total, at) => total + f(F.kernels[at]), 0);
  const beside = sum((k) => k.beside);
  $("said").textContent = `${plural(rows.length - beside, "kernel")}${beside ? ` and ${count(beside)} beside them` : ""}, ${bytes(sum((k) => k.moved_bytes))}, ${flops(sum((k) => k.flops))}`;
  kernelList.show(rows);
  if (!rows.includes(kernelView.chosen)) kernelView.chosen = rows[0];
  if (rows.length) { kernelList.reveal(rows.indexOf(kernelView.chosen)); kernelDetail(kernelView.chosen); } else $("detail").innerHTML = "";
}

function drawKernelRow(at, place, chosen) {
  const k = F.kernels[at];
  return `<div class="row ${chosen ? "chosen" : ""}" data-at="${place}" style="top:${place * ROW}px;padding-left:10px"><span class="end" style="width:38px">${at + 1}</span>
    <span class="grow"><b>${esc(k.name)}</b> <span class="type">${esc(k.layers[0] || "")}${k.beside ? " · beside the one before" : ""}${again.has(at) ? " · again" : ""}</span></span><span class="end" style="width:80px">${bytes(k.moved_bytes)}</span><span class="end" style="width:96px">${flops(k.flops)}</span></div>`;
}

function kernelDetail(at) {
  const k = F.kernels[at], list = (items) => `<ul>${items.map((x) => `<li>${esc(x)}</li>`).join("")}</ul>`;
  const nodes = k.nodes.map((n) => `<li><a data-scheduled="${n}">${esc(word(n, OP))}</a> ${esc(word(n, TYPE))} <span class="soft">${esc(word(n, LAYER))}</span></li>`).join("");
  const second = (again.get(at) || []).map((r) => `<p>Computes ${esc(r.value)} again: ${esc(r.why)}.</p>`).join("");
  $("detail").innerHTML = `<h3>${at + 1} ${esc(k.name)}</h3><dl><dt>moves</dt><dd>${bytes(k.moved_bytes)}</dd><dt>does</dt><dd>${flops(k.flops)}${k.moved_bytes ? ` (${(k.flops / k.moved_bytes).toFixed(1)} a byte)` : ""}</dd>
    <dt>fused</dt><dd>${esc(tallied(k.operations))}</dd></dl>${second}
    <h3>Operations</h3><ul>${nodes}</ul><h3>Reads</h3>${list(k.reads)}<h3>Writes</h3>${list(k.writes)}${k.layers.length ? `<h3>Layers</h3>${list(k.layers)}` : ""}${k.lines.length ? `<h3>Lines</h3>${list(k.lines)}` : ""}`;
}

// -- refused, recomputed ----------------------------------------------------------------------------------------------

function refusedTab() {
  const rows = F.refused.filter((r) => !wanted.length || matches(`${r.operation} ${r.kernel} ${r.reason}`));
  const groups = new Map();
  for (const r of rows) (groups.get(r.reason) || groups.set(r.reason, []).get(r.reason)).push(r);
  let text = `<h2>Fusions refused</h2><p class="soft">An operation that could have been computed in a kernel whose result it reads, or that reads the same, and why it was not.</p>`;
  for (const [reason, some] of [...groups].sort((a, b) => b[1].length - a[1].length)) {
    text += `<details ${groups.size < 8 || wanted.length ? "open" : ""}><summary><b>${esc(reason)}</b> <span class="soft">${some.length}</span></summary><ul>${some.map((r) => `<li><b>${esc(r.operation)}</b> into ${esc(r.kernel)}</li>`).join("")}</ul></details>`;
  }
  main.innerHTML = `<div class="scroll">${text}${rows.length ? "" : "<p>None.</p>"}</div>`;
}

function recomputedTab() {
  const rows = F.recomputed.filter((r) => !wanted.length || matches(`${r.value} ${r.made_of.join(" ")}`));
  const kernel = (k) => (k ? `<a data-kernel="${k - 1}">${k}</a>` : "in others");
  let text = `<h2>Computed again instead of kept</h2><p class="soft">A large value that nothing reads for long is not kept: it is freed after its last early use and made again before the late one, where what it is made of is in memory then anyway, or is smaller. ${plural(rows.length, "value")}, ${bytes(rows.reduce((t, r) => t + r.nbytes, 0))} in all.</p>
    <table><tr><th>value</th><th class="n">bytes</th><th class="n">kernel</th><th class="n">last early use</th><th class="n">again in</th><th class="n">kernels without it</th><th>made again from</th></tr>`;
  for (const r of rows) {
    const from = r.made_of.length > 1 ? `<details><summary>${esc(r.made_of[0])} and ${r.made_of.length - 1} more</summary>${r.made_of.slice(1).map(esc).join("<br />")}</details>` : esc(r.made_of.join());
    text += `<tr title="${esc(r.why)}"><td>${esc(r.value)}</td><td class="n">${bytes(r.nbytes)}</td><td class="n">${kernel(r.kernel)}</td><td class="n">${kernel(r.last_early_use)}</td><td class="n">${kernel(r.again)}</td><td class="n">${r.again ? r.again - r.last_early_use - 1 : ""}</td><td>${from}</td></tr>`;
  }
  main.innerHTML = `<div class="scroll">${text}</table>${rows.length ? "" : "<p>None: either nothing is large and cheap to make again, or all intermediate values together take less than 64 MiB.</p>"}</div>`;
}

// -- memory -----------------------------------------------------------------------------------------------------------

const view = { from: 1, to: F.kernels.length + 1 };
const PRODUCTS = /^(dot|conv2d)/, REDUCTIONS = /^(sum|max|min|prod|argmax|argmin|any|all)\b/;
const kinds = [["product", "product, convolution"], ["reduce", "reduction"], ["map", "element-wise"], ["own", "a kernel's own"]];
const kindOf = (b) => (b.value.startsWith("memory of ") ? "own" : PRODUCTS.test(b.value) ? "product" : REDUCTIONS.test(b.value) ? "reduce" : "map");

function memoryTab() {
  if (!F.memory.length) { main.innerHTML = '<div class="nothing">No intermediate value lies in memory.</div>'; return; }
  const legend = kinds.map(([k, what]) => `<span class="key"><i style="background:var(--${k})"></i>${what}</span>`).join("");
  main.innerHTML = `<div class="bar">${legend}<button id="whole">whole</button><span class="soft">${bytes(F.after.arena_bytes)} for ${plural(F.memory.length, "value")}. Across: kernels in the order they run; up: address. Wheel zooms, dragging moves, a click shows the kernel.</span></div><div class="stage"><canvas id="canvas"></canvas></div>`;
  const canvas = $("canvas");
  let drag = null, moved = false;
  const kernelAt = (x) => view.from + ((x - LEFT) / (canvas.clientWidth - LEFT)) * (view.to - view.from);
  $("whole").onclick = () => { view.from = 1; view.to = F.kernels.length + 1; paintMemory(); };
  canvas.onwheel = (e) => {
    e.preventDefault();
    const at = kernelAt(e.offsetX), factor = Math.exp(e.deltaY / 400);
    limitView(at - (at - view.from) * factor, at + (view.to - at) * factor);
  };
  canvas.onpointerdown = (e) => { drag = { x: e.offsetX, from: view.from, to: view.to }; moved = false; canvas.setPointerCapture(e.pointerId); };
  canvas.onpointerup = () => { drag = null; };
  canvas.onpointermove = (e) => {
    if (drag && Math.abs(e.offsetX - drag.x) > 3) {
      moved = true;
      const by = ((drag.x - e.offsetX) / (canvas.clientWidth - LEFT)) * (drag.to - drag.from);
      const step = Math.max(1 - drag.from, Math.min(F.kernels.length + 1 - drag.to, by));
      limitView(drag.from + step, drag.to + step);
    }
    hover(e, blockAt(canvas, e.offsetX, e.offsetY));
  };
  canvas.onpointerleave = () => hover(null);
  canvas.onclick = (e) => { const b = blockAt(canvas, e.offsetX, e.offsetY); if (b && !moved) goToKernel(b.first - 1); };
  new ResizeObserver(() => { if ($("canvas") === canvas) paintMemory(); }).observe(canvas);
  paintMemory();
}

const LEFT = 70, BELOW = 24, CURVE = 70;  // pixels for the labels, and for the curve of what is alive

function limitView(from, to) {
  view.from = Math.max(1, from);
  view.to = Math.min(F.kernels.length + 1, Math.max(to, view.from + 3));
  paintMemory();
}

function alive() {
  const change = new Float64Array(F.kernels.length + 3);
  for (const b of F.memory) { change[b.first] += b.nbytes; change[b.last + 1] -= b.nbytes; }
  for (let k = 1; k < change.length; k++) change[k] += change[k - 1];
  return change;
}

const cutTo = (text, pixels) => (6 * text.length > pixels ? `${text.slice(0, Math.max(0, Math.floor(pixels / 6) - 1))}…` : text);

function geometry(canvas) {
  const high = canvas.clientHeight - BELOW - CURVE, wide = canvas.clientWidth - LEFT;
  return {
    high, x: (k) => LEFT + ((k - view.from) / (view.to - view.from)) * wide,
    y: (address) => high - (address / F.after.arena_bytes) * high,
  };
}

function blockAt(canvas, x, y) {
  const g = geometry(canvas);
  return F.memory.find((b) => x >= g.x(b.first) && x < g.x(b.last + 1) && y <= g.y(b.offset) && y > g.y(b.offset + b.nbytes) - 1 && x >= LEFT);
}

function paintMemory(lit = null) {
  const canvas = $("canvas"), c = canvas.getContext("2d"), ratio = window.devicePixelRatio || 1;
  const style = getComputedStyle(document.documentElement), colour = (k) => style.getPropertyValue(`--${k}`).trim();
  canvas.width = canvas.clientWidth * ratio; canvas.height = canvas.clientHeight * ratio;
  c.scale(ratio, ratio);
  const g = geometry(canvas), wide = canvas.clientWidth, colours = Object.fromEntries(kinds.map(([k]) => [k, colour(k)]));
  c.font = "11px system-ui, sans-serif"; c.textBaseline = "middle"; c.strokeStyle = colour("line"); c.fillStyle = colour("soft");
  for (let k = 0; k <= 4; k++) {
    const y = g.y((F.after.arena_bytes * k) / 4);
    c.textAlign = "right"; c.fillText(bytes(Math.round((F.after.arena_bytes * k) / 4)), LEFT - 8, Math.max(7, y - (k ? 0 : 6)));
    c.beginPath(); c.moveTo(LEFT, y); c.lineTo(wide, y); c.stroke();
  }
  c.save(); c.beginPath(); c.rect(LEFT, 0, wide - LEFT, canvas.clientHeight); c.clip();
  for (const b of F.memory) {
    const x = g.x(b.first), w = g.x(b.last + 1) - x, y = g.y(b.offset + b.nbytes), h = g.y(b.offset) - y;
    if (x > wide || x + w < LEFT) continue;
    c.globalAlpha = wanted.length && !matches(b.value) ? 0.12 : b === lit ? 1 : 0.82;
    c.fillStyle = colours[kindOf(b)]; c.fillRect(x, y, Math.max(w, 0.7), Math.max(h, 0.7));
    if (w > 3 && h > 3) { c.strokeStyle = b === lit ? colour("text") : colour("back"); c.lineWidth = b === lit ? 2 : 0.7; c.strokeRect(x, y, w, h); }
    if (w > 90 && h > 15) { c.fillStyle = "#fff"; c.textAlign = "left"; c.fillText(cutTo(b.value, Math.min(x + w, wide) - Math.max(x, LEFT) - 10), Math.max(x, LEFT) + 5, y + h / 2); }
  }
  c.globalAlpha = 1;
  paintAlive(c, g, canvas, colour);
  c.restore();
}

function paintAlive(c, g, canvas, colour) {
  const use = alive(), bottom = canvas.clientHeight - BELOW, high = CURVE - 16;
  c.fillStyle = colour("product"); c.globalAlpha = 0.35; c.beginPath(); c.moveTo(g.x(1), bottom);
  for (let k = 1; k <= F.kernels.length; k++) { const y = bottom - (use[k] / F.after.arena_bytes) * high; c.lineTo(g.x(k), y); c.lineTo(g.x(k + 1), y); }
  c.lineTo(g.x(F.kernels.length + 1), bottom); c.fill(); c.globalAlpha = 1;
  c.fillStyle = colour("soft"); c.textAlign = "left"; c.fillText("bytes alive", LEFT + 4, g.high + 10);
  c.textAlign = "center";
  const step = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].find((s) => (s / (view.to - view.from)) * canvas.clientWidth > 50) || 2000;
  for (let k = Math.ceil(view.from / step) * step; k < view.to; k += step) if (g.x(k) > LEFT + 8) c.fillText(k, g.x(k + 0.5), canvas.clientHeight - BELOW / 2);
}

let lit = null;

function hover(e, b) {
  const tip = $("tip");
  if (!b) { tip.hidden = true; if (lit) { lit = null; if ($("canvas")) paintMemory(); } return; }
  if (b !== lit) { lit = b; paintMemory(b); }
  tip.innerHTML = `<b>${esc(b.value)}</b><br />${bytes(b.nbytes)} at ${count(b.offset)}<br />kernels ${b.first} to ${b.last}: ${esc(F.kernels[b.first - 1].name)}${b.last > b.first ? ` … ${esc(F.kernels[b.last - 1].name)}` : ""}`;
  tip.hidden = false;
  tip.style.left = `${Math.min(e.clientX + 14, innerWidth - tip.offsetWidth - 8)}px`;
  tip.style.top = `${Math.min(e.clientY + 14, innerHeight - tip.offsetHeight - 8)}px`;
}

// -- the frame --------------------------------------------------------------------------------------------------------

const tabs = [
  ["overview", "Overview", overview, null], ["graph", "Graph", graphTab, null], ["kernels", "Kernels", kernelsTab, F.kernels.length - besides],
  ["refused", "Refused fusions", refusedTab, F.refused.length], ["recomputed", "Recomputed", recomputedTab, F.recomputed.length],
  ["memory", "Memory", memoryTab, null],
];
let tab = "";

function open(name) {
  hover(null);
  tab = name;
  $("tabs").innerHTML = tabs.map(([key, label, , n]) => `<button role="tab" data-tab="${key}" aria-selected="${key === name}">${label}${n === null ? "" : ` <small>${count(n)}</small>`}</button>`).join("");
  tabs.find(([key]) => key === name)[2]();
  if (location.hash !== `#${name}`) history.replaceState(null, "", `#${name}`);
}

function setSearch(text) {
  $("search").value = text;
  wanted = text.toLowerCase().split(/\s+/).filter(Boolean);
}

function refresh() { ({ graph: refreshGraph, kernels: F.kernels.length ? refreshKernels : kernelsTab, memory: F.memory.length ? paintMemory : memoryTab }[tab] || (() => open(tab)))(); }

function goToKernel(at) {
  if (wanted.length && !matches(textOfKernel(F.kernels[at]))) setSearch("");
  kernelView.chosen = at;
  open("kernels");
}

document.addEventListener("click", (e) => {
  const to = e.target.closest("[data-tab],[data-pass],[data-show],[data-kernel],[data-scheduled],[data-node],[data-group]");
  if (!to) return;
  const d = to.dataset;
  if (d.tab) open(d.tab);
  else if (d.pass) { graphs.at = +d.pass; open("graph"); }
  else if (d.show) { graphs.at = +d.show; graphTab(); }
  else if (d.kernel) goToKernel(+d.kernel);
  else if (d.scheduled) { graphs.at = F.passes.length - 1; open("graph"); goToNode(+d.scheduled); }
  else if (d.group !== undefined) goToGroup(d.group);
  else goToNode(+d.node);
});
$("search").addEventListener("input", (e) => { setSearch(e.target.value); refresh(); });
document.addEventListener("keydown", (e) => {
  if (e.key === "/" && e.target !== $("search")) { e.preventDefault(); $("search").focus(); }
  if (e.key === "Escape") { setSearch(""); refresh(); }
});
const dark = matchMedia("(prefers-color-scheme: dark)");
const setDark = (on) => { document.documentElement.classList.toggle("dark", on); if (tab === "memory") refresh(); };
dark.addEventListener("change", (e) => setDark(e.matches));
$("theme").onclick = () => setDark(!document.documentElement.classList.contains("dark"));
setDark(dark.matches);
open((tabs.find(([key]) => `#${key}` === location.hash) || tabs[0])[0]);
