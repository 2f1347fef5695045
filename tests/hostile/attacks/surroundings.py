"""Attacks on the process in which handlers run, and by threads and tasks that they leave running there."""

from __future__ import annotations

from attacks.attack import Attack, End

__all__ = ["ATTACKS"]

_EITHER = (End.RIGHT, End.STOPPED)
_RIGHT = (End.RIGHT,)

_CHANGES = {
    "the working folder": "os.chdir('/')",
    "the environment": "os.environ.clear()",
    "standard output is none": "sys.stdout = None",
    "standard error is none": "sys.stderr = None",
    "standard output is closed": "sys.stdout = open(os.devnull, 'w')\nsys.stdout.close()",
    "standard error is closed": "sys.stderr = open(os.devnull, 'w')\nsys.stderr.close()",
    "the limit of recursion": "sys.setrecursionlimit(10_000)",
    "the locale": "locale.setlocale(locale.LC_ALL, 'C')",
    "the decimal context": "decimal.getcontext().prec = 1\ndecimal.getcontext().traps[decimal.Inexact] = True",
    "the time of day": "time.time = lambda: 0.0",
    "the monotonic clock": "time.monotonic = lambda: 0.0",
    "sleeping": "time.sleep = lambda _: None",
    "garbage collection is off": "gc.disable()",
    "garbage collection at every step": "gc.set_threshold(1)\ngc.collect()",
    "warnings are errors": "warnings.simplefilter('error')",
    "signals are ignored": "signal.signal(signal.SIGINT, signal.SIG_IGN)",
    "signals have another handler": "signal.signal(signal.SIGTERM, lambda *_: None)",
    "an alarm is set": "signal.setitimer(signal.ITIMER_REAL, 0)",
    "the random seed": "__import__('random').seed(0)",
    "the search path of modules": "sys.path.clear()",
    "modules are forgotten": "sys.modules.pop(__name__)\nsys.modules.pop('json', None)",
    "an excepthook": "sys.excepthook = None\nthreading.excepthook = None",
    "the names of threads": "threading.current_thread().name = '\\ud800'",
    "logging is off": "__import__('logging').disable()",
    "logging raises": "import logging\nlogging.Logger.handle = lambda *_: 1 / 0",
    "the JSON decoder": "import orjson\norjson.loads = lambda *_: 1 / 0",
    "umask": "os.umask(0o077)",
    "int's limit of digits": "sys.set_int_max_str_digits(640)",
    "a context variable": "contextvars.ContextVar('mine').set(1)",
}

_CHANGING = tuple(
    Attack(
        name=name,
        before=code,
        ends=_EITHER if name in ("the JSON decoder", "logging raises") else _RIGHT,
        process_wide=True,
    )
    if not name.startswith("signal")
    else Attack(name=name, before=code, ends=_EITHER, process_wide=True)
    for name, code in _CHANGES.items()
)

_AFTER_COMMIT = {
    "raises": "after_commit(lambda: 1 / 0)",
    "raises a permanent error": "after_commit(lambda: (_ for _ in ()).throw(NonTransientError('mine')))",
    "exits": "after_commit(sys.exit)",
    "panics": "after_commit(lambda: (_ for _ in ()).throw(Panic('mine')))",
    "has no text": "after_commit(lambda: (_ for _ in ()).throw(NoText()))",
    "is not a call": "after_commit(7)",
    "is cancelled": "after_commit(lambda: (_ for _ in ()).throw(asyncio.CancelledError()))",
    "uses the transaction": "after_commit(lambda: connection.execute(insert(MODEL), {'position': 5, 'what': 'late'}))",
    "waits for another call after the commit": "after_commit(lambda: after_commit(lambda: None))",
    "adds calls again and again": """
def again(n=0):
    if n < 50:
        after_commit(lambda: again(n + 1))
after_commit(again)""",
}
_MINE = """
class Panic(BaseException):
    pass


class NoText(Exception):
    def __str__(self):
        raise RuntimeError
"""
_AFTERWARDS = tuple(
    Attack(
        name=f"a call after the commit {name}",
        extra=_MINE,
        before=code,
        ends=_EITHER if name == "is not a call" else _RIGHT,
    )
    for name, code in _AFTER_COMMIT.items()
)

_ASYNC = {
    "leaves a task pending": ("asyncio.get_running_loop().create_task(asyncio.sleep(3600))", (End.STOPPED,)),
    "leaves a task that raises": (
        "async def failing():\n    raise ValueError('mine')\nasyncio.get_running_loop().create_task(failing())",
        (End.STOPPED,),
    ),
    "cancels itself": ("asyncio.current_task().cancel()\nawait asyncio.sleep(0)", (End.STOPPED,)),
    "cancels itself at its end": ("asyncio.current_task().cancel()", _EITHER),
    "cancels all tasks": (
        "for task in asyncio.all_tasks():\n    task.cancel()\nawait asyncio.sleep(0)",
        (End.STOPPED,),
    ),
    "stops the loop": ("asyncio.get_running_loop().stop()\nawait asyncio.sleep(0)", _EITHER),
    "closes the loop": ("asyncio.get_running_loop().close()", (End.STOPPED,)),
    "runs another loop inside": ("asyncio.run(asyncio.sleep(0))", (End.STOPPED,)),
    "sets another loop": ("asyncio.set_event_loop(None)", _EITHER),
    "times out": ("async with asyncio.timeout(0):\n    await asyncio.sleep(3600)", (End.STOPPED,)),
    "awaits nothing": ("await None", (End.STOPPED,)),
    "swallows its cancellation": (
        "asyncio.current_task().cancel()\ntry:\n    await asyncio.sleep(0)\nexcept asyncio.CancelledError:\n    pass",
        _EITHER,
    ),
    "raises in a task group": (
        """
async def failing():
    raise ValueError('mine')
async with asyncio.TaskGroup() as tasks:
    tasks.create_task(failing())""",
        (End.STOPPED,),
    ),
    "has an unclosed generator": (
        "async def numbers():\n    yield 1\n    yield 2\nasync for _ in numbers():\n    break",
        _RIGHT,
    ),
    "writes in a task that is never awaited": (
        "async def writing():\n    connection.execute(insert(MODEL), {'position': 5, 'what': 'late'})\n"
        "late = writing()\nlate.close()",
        _RIGHT,
    ),
}
_AWAITING = tuple(
    Attack(name=f"an async handler {name}", after=code, kinds=("async",), ends=ends)
    for name, (code, ends) in _ASYNC.items()
)

_LOOPS = (
    Attack(
        name="a plain handler runs a loop of its own",
        before="asyncio.run(asyncio.sleep(0))",
        kinds=("single", "list", "class"),
        ends=_RIGHT,
    ),
    Attack(
        name="a plain handler returns a coroutine that raises",
        extra="async def failing():\n    raise ValueError('mine')",
        after="return failing()",
        kinds=("single", "class"),
    ),
    Attack(
        name="a plain handler returns a task of another loop",
        after="loop = asyncio.new_event_loop()\nlate = loop.create_future()\nloop.close()\nreturn late",
        kinds=("single", "class"),
    ),
    Attack(name="a handler returns something", after="return 7", kinds=("single", "class"), ends=_RIGHT),
    Attack(name="a handler returns an iterator", after="return iter(())", kinds=("single", "class"), ends=_EITHER),
    Attack(
        name="a thread of the handler raises",
        extra="""
def failing():
    with contextlib.suppress(ValueError):
        raise ValueError("mine")
""",
        before="threading.Thread(target=failing).start()",
        ends=_RIGHT,
    ),
    Attack(
        name="a thread that never ends",
        before="threading.Thread(target=threading.Event().wait, args=(2,), daemon=True).start()",
        ends=_RIGHT,
    ),
)

_FORKED = {"returns": ("return", 0), "exits": ("sys.exit(3)", 3), "raises": ("raise ValueError('of the child')", 1)}
_FORKS = tuple(
    Attack(
        name=f"a process that it forks {'after it has written' if moment == 'after' else 'first'} {name}",
        **{moment: f"child = os.fork()\nif not child:\n    {code}\nassert os.waitpid(child, 0)[1] == {ended} << 8"},
        ends=_RIGHT,
        process_wide=True,
    )
    for name, (code, ended) in _FORKED.items()
    for moment in ("before", "after")
)

ATTACKS = (*_CHANGING, *_AFTERWARDS, *_AWAITING, *_LOOPS, *_FORKS)
