"""A helper process that compiles: IR text in, objects out, over its standard streams.

Started by path with ``-S -E`` and told where the parent finds its packages, so that it imports llvmlite and
``codegen/llvm.py`` and nothing else.  It ends by itself when its parent goes or has had nothing to do for a while.

A request is five length-prefixed strings (triple, cpu, features, effort, IR); a reply is one byte, 1 for an object and 0 for
an error message, and a length-prefixed string.
"""

import importlib.util
import json
import select
import struct
import sys
from types import SimpleNamespace


def read_string(stream):
    """One length-prefixed string; None at the end of the stream."""
    head = stream.read(4)
    if len(head) < 4:
        return None
    (length,) = struct.unpack("<I", head)
    body = stream.read(length)
    return body if len(body) == length else None


def write_string(stream, content):
    stream.write(struct.pack("<I", len(content)) + content)


def _idle(stream, seconds):
    if sys.platform == "win32":  # cannot wait for a pipe there: stay until the parent goes
        return False
    return not select.select([stream], [], [], seconds)[0]


def main(llvm_path, search_path, idle_seconds):
    sys.path[:] = json.loads(search_path)
    spec = importlib.util.spec_from_file_location("llvm_helper", llvm_path)
    llvm = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(llvm)
    # Requests are read whole and answered before the next is sent, so nothing hides in the stream's buffer.
    requests, replies = sys.stdin.buffer, sys.stdout.buffer
    while not _idle(requests, float(idle_seconds)):
        request = [read_string(requests) for _ in range(5)]
        if None in request:
            return
        triple, cpu, features, effort, text = (part.decode() for part in request)
        target = SimpleNamespace(triple=triple, cpu=cpu, features=features, effort=int(effort))
        try:
            good, content = 1, llvm.compile_to_object(text, target)
        except Exception as error:
            good, content = 0, str(error).encode()
        replies.write(bytes([good]))
        write_string(replies, content)
        replies.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
