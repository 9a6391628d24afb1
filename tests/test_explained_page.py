"""The page that ``lz.explain`` writes for the browser: well-formed, whole in itself, with all the facts, and it works."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

import lezero as lz
from lezero import nn
from lezero.nn import functional as F
from lezero.schedule import recompute

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
in_browser = pytest.mark.skipif(BROWSER is None, reason="no chromium or google-chrome to open the page in")
with_kernels = pytest.mark.skipif(lz.device.get_backend() != "cpu", reason="only the cpu backend has kernels to show")


class Tags(HTMLParser):
    """Complains about a tag that is not closed where it should be."""

    def __init__(self):
        super().__init__()
        self.open, self.attributes, self.content = [], [], {}

    def handle_starttag(self, tag, attrs):
        self.open.append((tag, dict(attrs).get("id")))
        self.attributes += attrs

    def handle_startendtag(self, tag, attrs):
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        if self.open:
            self.content[self.open[-1]] = self.content.get(self.open[-1], "") + data


def step(x, y, model, optimizer):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


@pytest.fixture(scope="module")
def explained(tmp_path_factory):
    """(explanation of a training step, its page)."""
    with pytest.MonkeyPatch.context() as patch:
        for limit, value in (("LEAST_TOTAL", 0), ("LEAST_BYTES", 4096)):
            patch.setattr(recompute, limit, value)
        model = lz.models.resnet18(num_classes=3)
        optimizer = lz.optim.SGD(model.parameters(), lr=0.1)
        found = lz.explain(step, lz.rand(2, 3, 32, 32), lz.tensor([0, 1]), model, optimizer)
    path = tmp_path_factory.mktemp("page") / "page.html"
    found.save(path)
    return found, path


def parsed(text):
    tags = Tags()
    tags.feed(text)
    tags.close()
    assert not tags.open
    return tags


def facts_of(text):
    return json.loads(parsed(text).content["script", "facts"])


def test_the_page_is_well_formed_and_fetches_nothing(explained):
    text = explained[1].read_text()
    tags = parsed(text)
    assert not [a for a in tags.attributes if a[0] in ("src", "href", "srcset", "data")]
    assert not re.search(r"https?:|//cdn|@import|url\(|fetch\(|XMLHttpRequest|WebSocket|\bimport\b", text)
    assert ("content", "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'") in tags.attributes


@with_kernels
def test_the_page_has_the_facts_of_the_text_and_the_graphs(explained):
    found, path = explained
    facts = facts_of(path.read_text())
    whole = json.loads(json.dumps(found.to_dict()))
    for key in ("name", "before", "after", "refused", "recomputed", "memory", "held"):
        assert facts[key] == whole[key]
    assert whole["refused"] and whole["recomputed"] and whole["memory"]
    words, nodes = facts["words"], facts["nodes"]
    for (name, graph), shown in zip(found.passes, facts["passes"], strict=True):
        assert shown["name"] == name
        order = {n: k for k, n in zip(shown["nodes"], graph.nodes(), strict=True)}
        for n, k in order.items():
            op, kind, _, layer, line, _, nbytes, *inputs = nodes[k]
            assert words[op] == ("input" if n.op.is_leaf else n.op.name) and inputs == [order[x] for x in n.inputs]
            assert words[kind].startswith(n.dtype.name) and nbytes >= 0
            assert words[layer].startswith(("ResNet", "(optimizer)")) or not words[layer]
            assert not words[line] or words[line].startswith(__file__)
    for kernel, shown in zip(found.kernels, facts["kernels"], strict=True):
        assert [words[nodes[k][0]] for k in shown["nodes"]] == kernel.operations
        assert {**shown, "nodes": 0} == {**vars(kernel), "nodes": 0}


def test_names_that_look_like_tags_stay_text(tmp_path):
    def f(x):
        return x * 2

    f.__name__ = "</script><b>{{facts}}"
    lz.explain(f, lz.ones(3)).save(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert facts_of(text)["name"] == f.__name__ and "<b>" not in text.split("<script", 1)[0]


def test_a_backend_without_kernels_has_a_page_too(tmp_path):
    before = lz.device.get_backend()
    lz.device.set_backend("numpy")
    try:
        found = lz.explain(nn.Linear(3, 2), lz.ones(4, 3))
    finally:
        lz.device.set_backend(before)
    found.save(tmp_path / "page.html")
    facts = facts_of((tmp_path / "page.html").read_text())
    assert facts["after"] is None and not facts["kernels"] and len(facts["passes"]) > 3


def driven(path, script, tmp_path):
    """What `script` gives as JSON in the page, and what the page had to complain about."""
    page = tmp_path / "driven.html"
    tail = f'<script>document.body.innerHTML = `<pre id="result">${{esc(JSON.stringify((() => {{ {script} }})()))}}</pre>`</script>'
    page.write_text(path.read_text().replace("</body>", tail + "</body>"))
    command = [
        BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--enable-logging=stderr",
        "--window-size=1400,900", f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=2000", "--dump-dom", page.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    (result,) = re.findall(r'<pre id="result">(.*?)</pre>', done.stdout, re.DOTALL)
    return json.loads(html.unescape(result)), complaints


@in_browser
@with_kernels
def test_the_page_works_in_a_browser(explained, tmp_path):
    found, path = explained
    script = """
    const seen = {};
    for (const [name] of tabs) { open(name); seen[name] = main.textContent; }
    seen["kernel tab"] = [...document.querySelectorAll("button")].map((b) => b.textContent.replace(/\\s/g, "")).find((t) => t.startsWith("Kernels"));
    open("graph");
    seen.passes = F.passes.map((p, at) => { graphs.at = at; graphTab(); return $("said").textContent; });
    graphs.changes = true; refreshGraph();
    graphs.open = new Set(F.layers.concat("(optimizer)").flatMap((l) => l.split(".").map((_, k, p) => p.slice(0, k + 1).join(CUT))));
    graphs.at = F.passes.findLastIndex((p) => p.name === "eliminate_common"); graphTab();
    seen.gone = [graphList.rows.reduce((sum, r) => sum + (r.state === "gone" ? r.times : 0), 0), difference(graphs.at).gone.length];
    graphs.changes = false; graphs.at = F.passes.length - 1; graphTab();
    setSearch("layer1.0.conv1 conv2d"); refresh();
    seen.found = graphList.rows.filter((r) => r.node !== undefined).map((r) => word(r.node, OP));
    setSearch("");
    goToKernel(F.kernels.length - 1);
    seen.kernel = $("detail").textContent;
    document.querySelector("[data-scheduled]").click();
    seen.node = [tab, F.passes[graphs.at].name, $("detail").textContent, document.querySelectorAll(".detail svg rect").length];
    open("memory");
    const canvas = $("canvas"), g = geometry(canvas), b = F.memory[0];
    const hit = blockAt(canvas, g.x(b.first) + 1, g.y(b.offset + b.nbytes / 2));
    hover({ clientX: 0, clientY: 0 }, hit);
    seen.tip = $("tip").textContent;
    const was = document.documentElement.classList.contains("dark");
    $("theme").click();
    seen.theme = document.documentElement.classList.contains("dark") !== was;
    const start = performance.now();
    graphs.at = F.passes.findIndex((p) => p.name === "decompose"); open("graph"); setSearch("float32"); refresh();
    seen.rows = graphList.rows.length; seen.drawn = document.querySelectorAll(".row").length; seen.took = performance.now() - start;
    return seen;
    """
    seen, complaints = driven(path, script, tmp_path)
    assert not complaints
    beside = sum(k.beside for k in found.kernels)
    assert beside and found.after.kernels == len(found.kernels) - beside
    assert (
        f"kernels{found.after.kernels}" in seen["overview"] and f"{len(found.kernels)} are listed" in seen["overview"]
    )
    assert f"{found.after.kernels} kernels and {beside} beside them" in seen["kernels"]
    assert seen["kernel tab"] == f"Kernels{found.after.kernels}"
    assert all(name in seen["overview"] for name, _ in found.passes)
    assert "layer1" in seen["graph"] and found.kernels[0].name in seen["kernels"]
    assert all(why in seen["refused"] for _, _, why in found.refused)
    assert all(r.value in seen["recomputed"] for r in found.recomputed)
    assert seen["passes"][0] == "as the program recorded it" and all(
        "gone since" in said for said in seen["passes"][1:]
    )
    assert 0 < seen["gone"][0] <= seen["gone"][1]
    assert sorted(set(seen["found"])) == ["conv2d", "conv2d_input_grad", "conv2d_weight_grad"]
    assert found.kernels[-1].name in seen["kernel"]
    tab, name, detail, boxes = seen["node"]
    assert (tab, name) == ("graph", "scheduled") and found.kernels[-1].operations[0] in detail and boxes >= 2
    assert found.memory[0].value in seen["tip"] and "kernels" in seen["tip"]
    assert seen["theme"] and seen["rows"] > 1000 and seen["drawn"] < 200 and seen["took"] < 2000
