"""Check that a kernel means something before code is made of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from lezero.loops import ir
from lezero.loops.printer import show

COMPLEX = frozenset(("c64", "c128"))
COMPARISONS = frozenset("eq ne lt le gt ge".split())
PREDICATES = frozenset(("isnan", "isinf", "isfinite"))
REAL_OF = {"c64": "f32", "c128": "f64"}


class LoopError(ValueError):
    """A kernel that breaks a rule of the loop IR; the message names the kernel, the rule and the place."""


def verify(kernel: ir.Kernel) -> None:
    """Raise :class:`LoopError` if `kernel` breaks a rule of :mod:`lezero.loops.ir`."""
    for s in kernel.scratch:
        _Body(kernel).value(s.length)
    for body in (kernel.body, kernel.combine or []):
        _Body(kernel).statements(body, top=True)


@dataclass
class _Body:
    kernel: ir.Kernel
    vars: set[str] = field(default_factory=set)
    accs: dict[str, str] = field(default_factory=dict)  # name -> type
    lane_accs: set[str] = field(default_factory=set)  # declared inside the vector loop
    vector: str | None = None
    tasks: int = 0
    seen: set[tuple] = field(default_factory=set)

    def error(self, message: str) -> LoopError:
        return LoopError(f"kernel {self.kernel.name}: {message}")

    def fail(self, message: str) -> None:
        raise self.error(message)

    # -- statements -----------------------------------------------------------------------------------------

    def statements(self, body: list[ir.Stmt], top: bool = False) -> None:
        vars, accs = set(self.vars), dict(self.accs)
        for s in body:
            match s:
                case ir.Loop():
                    self.loop(s, top)
                case ir.Acc():
                    self.expect(s.init, s.type, f"the initial value of {s.name}")
                    self.accs[s.name] = s.type
                    if self.vector:
                        self.lane_accs.add(s.name)
                case ir.Assign():
                    self.expect(s.value, self.acc(s.acc), f"the value of {s.acc}")
                    if self.vector and s.acc not in self.lane_accs:
                        self.fail(f"{s.acc} is declared outside vector loop {self.vector} and assigned inside it")
                case ir.Reduce():
                    self.reduce(s)
                case ir.Store():
                    self.store(s)
                case _:
                    self.fail(f"{s!r} is not a statement")
        self.vars, self.accs = vars, accs

    def loop(self, s: ir.Loop, top: bool) -> None:
        self.expect(s.extent, "i64", f"the extent of loop {s.var}")
        if s.var in self.vars:
            self.fail(f"loop variable {s.var} is already in use")
        if s.vector and self.vector:
            self.fail(f"vector loop {s.var} inside vector loop {self.vector}")
        if s.unroll and s.extent.op != "const":
            self.fail(f"loop {s.var} is to be unrolled but its extent is not a const")
        if s.task:
            if not top:
                self.fail(f"task loop {s.var} is not at the top level")
            self.tasks += 1
            if self.tasks > 1:
                self.fail(f"task loop {s.var} is the second one")
        outer = self.vector
        self.vector = s.var if s.vector else outer
        self.vars.add(s.var)
        self.statements(s.body)
        self.vars.discard(s.var)
        self.vector = outer

    def reduce(self, s: ir.Reduce) -> None:
        if s.kind not in ir.REDUCTIONS:
            self.fail(f"{s.kind} is not a reduction")
        type = self.acc(s.acc)
        self.expect(s.value, type, f"the value reduced into {s.acc}")
        if s.kind in ("any", "all") and type != "bool":
            self.fail(f"{s.kind} into {s.acc}, which is {type}, not bool")
        if type in COMPLEX and s.kind not in ("sum", "prod"):
            self.fail(f"{s.kind} of complex values")
        if s.kind in ir.POSITIONS:
            if s.index_acc is None or s.index is None:
                raise self.error(f"{s.kind} into {s.acc} has no index")
            if self.acc(s.index_acc) != "i64":
                self.fail(f"{s.index_acc} is {self.acc(s.index_acc)}, not i64")
            self.expect(s.index, "i64", f"the index for {s.index_acc}")
        elif s.index_acc is not None or s.index is not None:
            self.fail(f"{s.kind} into {s.acc} has an index")

    def store(self, s: ir.Store) -> None:
        if not 0 <= s.buffer < len(self.kernel.buffers) + len(self.kernel.scratch):
            self.fail(f"store to buffer {s.buffer}, which does not exist")
        if s.buffer < len(self.kernel.buffers):
            mode = self.kernel.buffers[s.buffer].mode
            if mode == "r" or (s.add and mode != "rw"):
                self.fail(f"{'adding ' if s.add else ''}store to buffer {s.buffer}, whose mode is {mode!r}")
        self.expect(s.index, "i64", f"the index into buffer {s.buffer}")
        self.expect(s.value, self.buffer(s.buffer), f"the value stored to buffer {s.buffer}")
        if s.mask is not None:
            self.expect(s.mask, "bool", f"the mask of a store to buffer {s.buffer}")

    def acc(self, name: str | None) -> str:
        if name is None or name not in self.accs:
            raise self.error(f"accumulator {name} is not declared here")
        return self.accs[name]

    def buffer(self, k: int) -> str:
        everything: list[ir.Buffer | ir.Scratch] = [*self.kernel.buffers, *self.kernel.scratch]
        if not 0 <= k < len(everything):
            self.fail(f"buffer {k} does not exist")
        return everything[k].type

    # -- expressions ----------------------------------------------------------------------------------------

    def expect(self, v: ir.Value, type: str, what: str) -> None:
        if v.type != type:
            self.fail(f"{what} is {v.type}, not {type}: {show(v)}")
        self.value(v)

    def value(self, root: ir.Value) -> None:
        stack = [root]
        done: set[ir.Value] = set()
        while stack:
            v = stack.pop()
            if v not in done:
                done.add(v)
                self.node(v)
                stack.extend(v.args)

    def node(self, v: ir.Value) -> None:
        if v.type not in ir.TYPES:
            self.fail(f"{v.type} is not a type")
        types = [a.type for a in v.args]
        match v.op:
            case "const" | "task" | "tasks":
                return
            case "param":
                if not 0 <= v.attr < self.kernel.params:
                    self.fail(f"param {v.attr} of {self.kernel.params}")
            case "var":
                if v.attr not in self.vars:
                    self.fail(f"loop variable {v.attr} is used outside its loop")
            case "acc":
                if self.acc(v.attr) != v.type:
                    self.fail(f"accumulator {v.attr} is {self.acc(v.attr)}, read as {v.type}")
            case "load":
                if self.buffer(v.attr) != v.type:
                    self.fail(f"buffer {v.attr} is {self.buffer(v.attr)}, loaded as {v.type}")
                self.types(v, types == ["i64"] or types == ["i64", "bool"])
            case "cast":
                self.types(v, len(types) == 1)
            case "bitcast":
                self.types(v, len(types) == 1 and ir.TYPES[types[0]] == ir.TYPES[v.type])
            case "where":
                self.types(v, types == ["bool", v.type, v.type])
            case "fma":
                self.types(v, types == [v.type] * 3)
            case _ if v.op in ir.UNARY and len(types) == 1:
                expected = "bool" if v.op in PREDICATES else types[0]
                if v.op in ("abs", "real", "imag"):
                    expected = REAL_OF.get(types[0], types[0])
                self.types(v, v.type == expected)
            case _ if v.op in ir.BINARY and len(types) == 2:
                expected = "bool" if v.op in COMPARISONS else types[0]
                if v.op == "complex":
                    expected = {"f32": "c64", "f64": "c128"}.get(types[0], "")
                self.types(v, types[0] == types[1] and v.type == expected)
            case _:
                self.fail(f"{v.op} with {len(types)} arguments is not an operation")

    def types(self, v: ir.Value, right: bool) -> None:
        if not right:
            self.fail(f"{v.op} of ({', '.join(a.type for a in v.args)}) cannot give {v.type}: {show(v)}")
