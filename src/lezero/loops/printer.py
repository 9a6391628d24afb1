"""Kernels as text: for people (:func:`text`, :func:`show`) and as the identity of machine code (:func:`key`)."""

from __future__ import annotations

from collections.abc import Iterable

from lezero.loops import ir

_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "mod": "%", "eq": "==", "ne": "!=", "lt": "<",
    "le": "<=", "gt": ">", "ge": ">=", "and": "&", "or": "|", "xor": "^", "shl": "<<", "shr": ">>",
}  # fmt: skip
_LEAVES = frozenset(("const", "param", "var", "task", "tasks", "acc"))


def show(value: ir.Value) -> str:
    """One expression as text; subexpressions used more than once are named ``t0``, ``t1``, ... and listed before."""
    printer = _Printer()
    last = printer.expression(value, ())
    return "; ".join([*(line.strip() for line in printer.lines), last])


def text(kernel: ir.Kernel) -> str:
    """The whole kernel, readable; expressions shared between statements are named once per statement."""
    printer = _Printer()
    return f"kernel {kernel.name}\n" + printer.kernel(kernel)


def key(kernel: ir.Kernel) -> str:
    """Text equal for kernels that need the same code: independent of `name` and of how variables are called."""
    return _Printer(rename=True).kernel(kernel)


class _Printer:
    def __init__(self, rename: bool = False) -> None:
        self.lines: list[str] = []
        self.rename = rename
        self.names: dict[str, str] = {}
        self.lets = 0
        self.pad = ""

    def name(self, kind: str, name: str | None) -> str:
        assert name is not None
        if not self.rename:
            return name
        return self.names.setdefault(kind + name, f"{kind}{len(self.names)}")

    def leaf(self, v: ir.Value) -> str:
        match v.op:
            case "const":
                return self.constant(v)
            case "param":
                return f"p{v.attr}"
            case "var":
                return self.name("i", v.attr)
            case "acc":
                return self.name("a", v.attr)
        return v.op

    def constant(self, v: ir.Value) -> str:
        if v.type == "i64":
            return str(v.attr)
        return f"{v.type}({v.attr if self.rename else ir.number(v)})"

    def node(self, v: ir.Value, args: list[str]) -> str:
        if v.op in _INFIX:
            return f"({args[0]} {_INFIX[v.op]} {args[1]})"
        if v.op == "load":
            mask = f" if {args[1]}" if len(args) > 1 else ""
            return f"b{v.attr}[{args[0]}{mask}]"
        if v.op in ("cast", "bitcast"):
            return f"{'bits:' if v.op == 'bitcast' else ''}{v.type}({args[0]})"
        return f"{v.op}({', '.join(args)})"

    def expression(self, root: ir.Value, others: Iterable[ir.Value] = ()) -> str:
        return self.expressions((root, *others))[0]

    def expressions(self, roots: tuple[ir.Value, ...]) -> list[str]:
        """Text of each root; what they use more than once becomes a ``let`` line first."""
        uses: dict[ir.Value, int] = {}
        order: list[ir.Value] = []
        stack: list[tuple[ir.Value, bool]] = [(v, False) for v in reversed(roots)]
        while stack:
            v, done = stack.pop()
            if done:
                order.append(v)
                continue
            uses[v] = uses.get(v, 0) + 1
            if uses[v] == 1:
                stack.append((v, True))
                stack.extend((a, False) for a in reversed(v.args))
        written: dict[ir.Value, str] = {}
        for v in order:
            if v.op in _LEAVES:
                written[v] = self.leaf(v)
                continue
            body = self.node(v, [written[a] for a in v.args])
            # Nested text of a long chain would grow without bound in depth, so long ones are named too.
            if uses[v] > 1 or len(body) > 160:
                written[v] = f"t{self.lets}"
                self.lets += 1
                self.lines.append(f"{self.pad}t{self.lets - 1}: {v.type} = {body}")
            else:
                written[v] = body
        return [written[v] for v in roots]

    def kernel(self, kernel: ir.Kernel) -> str:
        for k, buffer in enumerate(kernel.buffers):
            self.lines.append(f"b{k}: {buffer.type} {buffer.mode}")
        for k, scratch in enumerate(kernel.scratch, len(kernel.buffers)):
            self.lines.append(f"b{k}: {scratch.type} scratch {self.expression(scratch.length)}")
        self.lines.append(f"params {kernel.params}")
        self.body(kernel.body)
        if kernel.combine is not None:
            self.lines.append("combine")
            self.body(kernel.combine)
        return "\n".join(self.lines)

    def body(self, body: list[ir.Stmt]) -> None:
        outer, self.pad = self.pad, self.pad + "  "
        for s in body:
            self.statement(s)
        self.pad = outer

    def statement(self, s: ir.Stmt) -> None:
        match s:
            case ir.Loop():
                extent = self.expression(s.extent)
                how = "".join(f" {w}" for w in ("vector", "task", "unroll") if getattr(s, w))
                self.lines.append(f"{self.pad}for {self.name('i', s.var)} < {extent}{how}")
                self.body(s.body)
            case ir.Acc():
                init = self.expression(s.init)
                self.lines.append(f"{self.pad}acc {self.name('a', s.name)}: {s.type} = {init}")
            case ir.Reduce():
                roots: tuple[ir.Value, ...] = (s.value,) if s.index is None else (s.value, s.index)
                value, *where = self.expressions(roots)
                at = f" at {self.name('a', s.index_acc)}, {where[0]}" if where else ""
                self.lines.append(f"{self.pad}{self.name('a', s.acc)} {s.kind}= {value}{at}")
            case ir.Assign():
                value = self.expression(s.value)
                self.lines.append(f"{self.pad}{self.name('a', s.acc)} = {value}")
            case ir.Store():
                roots = (s.index, s.value) if s.mask is None else (s.index, s.value, s.mask)
                index, value, *mask = self.expressions(roots)
                when = f" if {mask[0]}" if mask else ""
                self.lines.append(f"{self.pad}b{s.buffer}[{index}] {'+=' if s.add else '='} {value}{when}")
