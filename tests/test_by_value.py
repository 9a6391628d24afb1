"""Functions and classes of a script reach another process by value, and are the same ones when they come back."""

import os
import pickle
import subprocess
import sys
import textwrap
import threading
from functools import partial

import numpy as np
import pytest

from lezero.data import DataLoader
from lezero.data.by_name import known
from lezero.data.by_value import dumps, globals_read_by
from lezero.data.culprit import culprit

FACTOR = 7

READER = "import pickle, sys; sys.stdout.buffer.write(pickle.dumps(pickle.load(sys.stdin.buffer)()))"


def environment():
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}


def elsewhere(function):
    """What `function` returns in another process."""
    done = subprocess.run(
        [sys.executable, "-c", READER], input=dumps(function), capture_output=True, env=environment(), check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return pickle.loads(done.stdout)


def run_script(tmp_path, text, first=""):
    """Run a program that has no main guard; `elsewhere(f)` in it calls f in another process."""
    script = tmp_path / "script.py"
    prelude = f"""
        import pickle, subprocess, sys
        from lezero.data.by_value import dumps

        def elsewhere(function):
            done = subprocess.run([sys.executable, "-c", {READER!r}], input=dumps(function), stdout=-1, check=True)
            return pickle.loads(done.stdout)
    """
    script.write_text(first + textwrap.dedent(prelude) + textwrap.dedent(text))
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=environment(), check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


# -- functions ------------------------------------------------------------------------------------------------


def test_lambdas_closures_and_defaults():
    base = 10

    def add(x, y=2, *, z: int = 3):
        """Adds."""
        return base + x + y + z

    add.note = "kept"

    def look():
        return add(1), add(1, 0, z=0), add.__doc__, add.note, add.__name__, add.__qualname__, add.__annotations__["z"]

    assert elsewhere(lambda: base * 2) == 20
    assert elsewhere(look) == (16, 11, "Adds.", "kept", "add", add.__qualname__, int)


def test_recursion_and_mutual_recursion():
    def even(n):
        return n == 0 or odd(n - 1)

    def odd(n):
        return n != 0 and even(n - 1)

    def factorial(n):
        return 1 if n < 2 else n * factorial(n - 1)

    assert elsewhere(lambda: (even(10), odd(10), factorial(6))) == (True, False, 720)
    assert elsewhere(partial(factorial, 5)) == 120


def test_functions_go_on_sharing_a_variable():
    count = 0

    def step():
        nonlocal count
        count += 1

    def steps():
        step()
        step()
        return count

    assert elsewhere(steps) == 2
    assert count == 0


def test_a_variable_without_a_value_yet():
    def look():
        try:
            return later
        except NameError:
            return "none yet"

    sent = dumps(look)
    later = 1
    assert subprocess.run(
        [sys.executable, "-c", READER], input=sent, capture_output=True, env=environment(), check=True
    ).stdout == pickle.dumps("none yet")
    assert later == 1


def test_generators_decorators_caches_and_bound_methods():
    from functools import lru_cache, wraps

    def twice(function):
        @wraps(function)
        def wrapped(*args):
            return function(*args) * 2

        return wrapped

    @twice
    def three():
        """Three."""
        return 3

    @lru_cache(maxsize=5)
    def fibonacci(n):
        return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

    def squares(n):
        yield from (i * i for i in range(n))

    class Scale:
        def __init__(self, by):
            self.by = by

        def __call__(self, x):
            return self.by * x

    bound = Scale(4).__call__

    def look():
        return (
            three(),
            three.__doc__,
            fibonacci(30),
            fibonacci.cache_parameters()["maxsize"],
            list(squares(4)),
            bound(5),
        )

    assert elsewhere(look) == (6, "Three.", 832040, 5, [0, 1, 4, 9], 20)


def test_only_globals_that_are_read_are_taken_also_by_nested_code():
    def outer():
        def inner():
            return FACTOR

        class Body:
            value = np

        return inner, Body, [os.sep for _ in ()]

    assert set(globals_read_by(outer)) == {"FACTOR", "np", "os", "__name__"}  # the last for Body.__module__


def test_globals_of_an_importable_module_are_its_own():
    assert elsewhere(lambda: FACTOR) == 7
    assert b"FACTOR" in dumps(lambda: FACTOR)  # in the code, not as a value:
    assert elsewhere(lambda: sys.modules[__name__].FACTOR is FACTOR)


# -- classes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["", "from __future__ import annotations\n"], ids=["", "annotations as text"])
def test_classes_with_everything_that_classes_have(first, tmp_path):
    out = run_script(
        tmp_path,
        """
        import abc, enum, functools
        from dataclasses import dataclass, field, fields, replace, MISSING
        from typing import Generic, NamedTuple, Protocol, TypedDict, TypeVar
        from collections import namedtuple

        print("once")
        T = TypeVar("T", bound=object)

        class Base(abc.ABC):
            registry = []
            def __init_subclass__(cls): super().__init_subclass__(); Base.registry.append(cls.__name__)
            @abc.abstractmethod
            def size(self): ...
            def name(self): return "base"

        class Child(Base, Generic[T]):
            '''A child.'''
            unit: T = "m"
            def __init__(self): self._length = 2
            def size(self): return self._length
            def name(self): return super().name() + "/" + __class__.__name__
            @property
            def length(self): return self._length
            @length.setter
            def length(self, value): self._length = value
            @staticmethod
            def plain(x): return x + 1
            @classmethod
            def make(cls): return cls()
            @functools.cached_property
            def area(self): return self._length ** 2
            def __eq__(self, other): return True

        class Slim:
            __slots__ = ("a", "__b")
            def __init__(self): self.a, self.__b = 1, 2
            def b(self): return self.__b

        @dataclass
        class Point:
            x: int
            y: list = field(default_factory=list, metadata={"unit": "m"})
            def norm(self): return abs(self.x)

        @dataclass(frozen=True, slots=True, order=True)
        class Fixed:
            x: int = 5

        class Pair(NamedTuple):
            left: int
            right: int = 9
            def total(self): return self.left + self.right

        Triple = namedtuple("Triple", "a b c")

        class Color(enum.Enum):
            RED = 1
            GREEN = 2
            CRIMSON = 1
            def shout(self): return self.name + "!"
            @classmethod
            def first(cls): return cls.RED
            def __str__(self): return "color " + self.name

        class Level(enum.IntEnum):
            LOW = 1
            HIGH = 2

        class Right(enum.Flag):
            READ = enum.auto()
            WRITE = enum.auto()

        class Planet(enum.Enum):
            EARTH = (6.0, 2.0)
            def __init__(self, mass, radius): self.mass, self.radius = mass, radius

        class Tagged(str, enum.Enum):
            def __new__(cls, text, tag):
                made = str.__new__(cls, text)
                made._value_, made.tag = text, tag
                return made
            A = ("a", 1)

        class Sized(Protocol):
            def size(self): ...

        class Options(TypedDict, total=False):
            depth: int

        class Meta(type):
            def __new__(meta, name, bases, body, key):
                return super().__new__(meta, name, bases, {**body, "key": key})
            def __len__(cls): return 42

        class Keyed(metaclass=Meta, key="k"):
            def own(self): return self.key, len(type(self))

        class Node:
            def __init__(self, depth): self.next = Node(depth - 1) if depth else None
            def depth(self): return 1 + self.next.depth() if self.next else 0

        class MyError(ValueError):
            def __init__(self, a, b): super().__init__(a, b)

        pickled = [Color.GREEN, Right.READ | Right.WRITE, Fixed(1), Pair(1), Triple(1, 2, 3), Slim(), Child(), Planet.EARTH]

        def look():
            c = Child.make()
            c.length = 3
            try:
                Base()
                abstract = False
            except TypeError:
                abstract = True
            try:
                Fixed().x = 1
                frozen = False
            except AttributeError:
                frozen = True
            yield c.size(), c.name(), Child.plain(1), c.area, Child.__doc__, Child.unit, Child.__hash__, Child.length.fset is not None
            yield abstract, Child.__mro__[1] is Base, isinstance(c, Base), "Child" in Base.registry, Child[int].__args__ == (int,)
            yield Slim().a, Slim().b(), hasattr(Slim(), "__dict__")
            yield Point(1), replace(Point(1), x=-2).norm(), fields(Point)[1].metadata["unit"], fields(Point)[0].default is MISSING
            yield frozen, Fixed(1) < Fixed(2), repr(Fixed())
            yield Pair(1).total(), Pair(1)._replace(right=0), Triple(1, 2, 3)._asdict()
            yield Color.CRIMSON is Color.RED, Color(2).shout(), str(Color.first()), list(Color) == [Color.RED, Color.GREEN]
            yield Level.HIGH > Level.LOW, Right.READ | Right.WRITE == Right(3), (Right.READ | Right.WRITE).value
            yield Planet.EARTH.mass, Tagged.A.tag, Tagged("a") is Tagged.A, Tagged.A == "a"
            yield Options(depth=1), Options.__total__, Keyed().own(), Node(3).depth(), Sized.__name__
            yield pickled[0] is Color.GREEN, pickled[1].value, pickled[2] == Fixed(1), pickled[5].b(), pickled[7] is Planet.EARTH
            try:
                raise MyError(1, 2)
            except ValueError as error:
                yield error.args, type(error) is MyError

        here = [repr(x) for x in look()]
        there = elsewhere(lambda: [repr(x) for x in look()])
        for a, b in zip(here, there, strict=True):
            if a != b:
                print(a, "became", b)
        print(len(there))
        """,
        first,
    )
    assert out.splitlines() == ["once", "12"]


def test_scripts_share_one_namespace_and_reach_their_imports(tmp_path):
    out = run_script(
        tmp_path,
        """
        import xml.dom.minidom, __main__
        import numpy as np
        counter, unused = 0, open(__file__)   # `unused` could not be sent

        def bump():
            global counter
            counter += 1

        def look():
            bump(), bump()
            text = xml.dom.minidom.parseString("<a/>").documentElement.tagName
            return counter, text, np.arange(3).sum().item(), __main__.counter, __name__, bump.__globals__ is look.__globals__

        print(elsewhere(look), counter)
        """,
    )
    assert out.strip() == "(2, 'a', 3, 2, '__main__', True) 0"


def test_in_its_own_process_a_pickle_is_the_object_itself():
    class Local:
        value = 1

    sent = dumps((Local, Local.__init_subclass__, len, np.add, FACTOR))
    Local.value = 2
    assert pickle.loads(sent)[0] is Local and Local.value == 2  # not put back to what it was


def test_what_can_be_imported_goes_by_name():
    assert len(dumps(DataLoader)) < 60
    assert pickle.loads(dumps((DataLoader, environment, type(None), np.float32, type(lambda: 0), os))) == (
        DataLoader,
        environment,
        type(None),
        np.float32,
        type(lambda: 0),
        os,
    )


# -- there and back -------------------------------------------------------------------------------------------


def test_batches_come_back_as_instances_of_the_scripts_own_classes(tmp_path):
    out = run_script(
        tmp_path,
        """
        import enum
        from dataclasses import dataclass
        from lezero.data import DataLoader
        print("once")

        class Kind(enum.Enum):
            EVEN = 0
            ODD = 1

        @dataclass
        class Item:
            value: int
            kind: Kind

        class Mine:
            def __len__(self): return 4
            def __getitem__(self, i):
                if i == 3: raise Missing(i, "third")
                return Item(i, Kind(i % 2))

        class Missing(Exception):
            def __init__(self, index, text):
                super().__init__(index, text)
                self.index = index

        def helper(items): return items, helper, lambda: (len(items), late)
        late = "parent"

        loader = DataLoader(Mine(), batch_size=1, num_workers=1, collate_fn=helper)
        try:
            for items, function, local in loader:
                late = "parent, later"
                assert type(items[0]) is Item and items[0].kind is Kind(items[0].value % 2) and function is helper
                assert local() == (1, "parent, later") and local.__globals__ is globals(), local()
        except Missing as error:
            print(error.index, "while loading item 3" in error.__notes__[0])
        """,
    )
    assert out.splitlines() == ["once", "3 True"]


def test_what_comes_back_is_named_and_not_sent_again(tmp_path):
    worker = """
        import pickle, sys
        from lezero.data.by_value import dumps
        cls = pickle.load(sys.stdin.buffer)
        sys.stdout.buffer.write(dumps(cls(), returning=True))
    """

    class Big:
        text = "x" * 10000

        def method(self):
            return self.text

    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(worker)],
        input=dumps(Big),
        capture_output=True,
        env=environment(),
        check=True,
    )
    assert len(done.stdout) < 200
    assert type(pickle.loads(done.stdout)) is Big


def test_what_is_gone_when_it_comes_back_is_told():
    with pytest.raises(LookupError, match="is gone from there"):
        known(("nowhere", 1))


# -- refusals -------------------------------------------------------------------------------------------------


def travels(obj):
    try:
        dumps(obj)
    except Exception:
        return False
    return True


def test_the_culprit_is_found_with_its_path(tmp_path):
    lock = threading.Lock()
    file = open(tmp_path / "open", "w")  # noqa: SIM115

    class Part:
        def __init__(self, inner):
            self.inner = inner
            self.itself = self

    class Careful(Part):
        def __getstate__(self):
            return {"inner": self.inner}

    careful = Careful({"key": [1, (i for i in ())]})
    careful.lock = lock  # left out by __getstate__, so it is not to blame
    shared = Part(lambda: lock)

    class Holder:
        handle = file

    for obj, path, kind in [
        (Part([0, {"a": lock}]), "dataset.inner[1]['a']", "lock"),
        (careful, "dataset.inner['key'][1]", "generator"),
        (shared, "dataset.inner → variable lock", "lock"),
        (partial(max, lock), "dataset.args[0]", "lock"),
        (Holder(), "dataset → class Holder.handle", "TextIOWrapper"),
    ]:
        found, reason = culprit(obj, "dataset", travels)
        assert (found, type(reason).__name__) == (path, kind)
    file.close()


def test_the_loader_names_the_part_and_the_path():
    class Data:
        def __init__(self):
            self.transforms = [abs, lambda x: lock]

        def __len__(self):
            return 3

        def __getitem__(self, i):
            return self.transforms[i](i)

    lock = threading.Lock()
    with pytest.raises(
        TypeError, match=r"the dataset cannot be sent .* because of dataset\.transforms\[1\] → variable lock, a lock"
    ):
        list(DataLoader(Data(), num_workers=1))


def test_a_module_made_at_run_time_is_refused():
    import types

    module = types.ModuleType("made_up")
    with pytest.raises(TypeError, match="the module 'made_up': it was made at run time"):
        dumps(lambda: module)
