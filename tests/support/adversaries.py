"""Hostile programs with their expected endings and the guards that stop them.

`PROGRAMS` lists all of them, and `hostile` runs them. There are two kinds: attacks make up to four
attempts when they are loaded, and return the error of each attempt as the observation, and the
reward 1 if one succeeded. All other programs are judged by their ending. The facts that an attack
needs, such as the victims' process numbers, are inserted before its text.
"""

from textwrap import dedent, indent
from typing import NamedTuple

KEY = "CWM_CANARY_KEY"
"""The environment variable of the trusted side that no program may see."""

REMNANT = "REMNANT-00112233445566aa"
"""The pattern that one program leaves in its memory and others search for."""

LAYERS = ("user", "capabilities", "landlock", "limits", "seccomp")

GOOD = """
import math

class Environment:
    def set_state(self, observation):
        self.state = [float(part) for part in observation]

    def step(self, action):
        x, speed, angle, turn = self.state
        push = 10.0 if int(action) == 1 else -10.0
        cosine, sine = math.cos(angle), math.sin(angle)
        pull = (push + 0.05 * turn ** 2 * sine) / 1.1
        turning = (9.8 * sine - cosine * pull) / (0.5 * (4.0 / 3.0 - 0.1 * cosine ** 2 / 1.1))
        speeding = pull - 0.05 * turning * cosine / 1.1
        state = [x + 0.02 * speed, speed + 0.02 * speeding, angle + 0.02 * turn,
                 turn + 0.02 * turning]
        return state, 1.0, bool(abs(state[0]) > 2.4 or abs(state[2]) > 0.21)
"""
"""The true dynamics of the dataset, which also has to work after every other program."""

ERRORS = (
    "?",
    "ModuleNotFoundError",
    "RuntimeError",
    "MemoryError",
    "ValueError",
    "KeyError",
    "OSError",
    "IndexError",
    "AttributeError",
)
"""The meanings of 1000, 1001, ... in the answer of an attack."""

PRELUDE = (
    f"ERRORS = {ERRORS!r}\n"
    + '''
import ctypes, errno, fcntl, gc, mmap, os, re, resource, signal, socket, struct, subprocess, sys
import threading, time
import numpy as np

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = LIBC.ptrace.restype = ctypes.c_long
X86 = os.uname().machine == "x86_64"
ATTEMPTS = []


def attempt(function):
    ATTEMPTS.append(function)


def libc(name, *values):
    values = [ctypes.c_long(value) if isinstance(value, int) else value for value in values]
    result = getattr(LIBC, name)(*values)
    if result < 0:
        raise OSError(ctypes.get_errno(), name)
    return result


def system_call(x86, other, *values):
    return libc("syscall", x86 if X86 else other, *values)


def error_of(function):
    try:
        function()
    except Exception as error:
        if isinstance(error, OSError) and error.errno:
            return float(error.errno)
        return 1000.0 + ERRORS.index(type(error).__name__)
    return 0.0


def create(path):
    with open(path, "w"):
        pass


def cell(content):
    """An iovec over a buffer."""
    return (ctypes.c_size_t * 2)(ctypes.addressof(content), len(content))


class Environment:
    def __init__(self):
        errors = [error_of(function) for function in ATTEMPTS]
        self.answer = np.array(errors + [-1.0] * (4 - len(errors)))
        self.reached = float(0.0 in errors)

    def set_state(self, observation):
        pass

    def step(self, action):
        return self.answer, self.reached, False

'''
)

SCAN = '''
def is_mapped(address):
    """Ask the kernel, which looks at the memory before it looks at the senseless first value."""
    try:
        system_call(14, 135, 99, address, 0, 8)
    except OSError as error:
        return error.errno == errno.EINVAL
    return True


def end(address, pages):
    """Walk over mapped pages."""
    step = 4096 if pages > 0 else -4096
    for _ in range(abs(pages)):
        if not is_mapped(address):
            return address
        address += step
    return address


def memory():
    """Yield memory around what Python, libc, numpy and mmap have allocated."""
    buffers = np.zeros(50), np.zeros(10**6)
    points = [id(value) for value in ({}, "x" * 9, [], memory, buffers[0], PRELUDE_END * 99)]
    points += [buffer.ctypes.data for buffer in buffers]
    points += [id(value) for value in frames() for value in (value, type(value))]
    LIBC.sbrk.restype = ctypes.c_void_p
    points.append(LIBC.sbrk(ctypes.c_long(0)) - 1)
    done = []
    for point in points:
        point &= ~4095
        if any(start <= point < stop for start, stop in done) or not is_mapped(point):
            continue
        start, stop = end(point, -2048) + 4096, end(point, 2048)
        done.append((start, stop))
        for place in range(start, stop, 1 << 20):
            yield ctypes.string_at(place, min(stop - place, (1 << 20) + 64))


def frames():
    frame = sys._getframe()
    while frame:
        yield from frame.f_locals.values()
        frame = frame.f_back


PRELUDE_END = chr(88)


def find(pattern):
    """Succeed if a pattern of another program is in memory; its own pattern must be found, too."""
    found, own = False, False
    for part in memory():
        found = found or re.search(pattern, part)
        own = own or re.search(rb"OWN-[0-9a-f]{16}", part)
    if not own:
        raise AssertionError("the scan does not even find the text of its own program")
    if not found:
        raise KeyError("nothing")

'''


class Adversary(NamedTuple):
    """A program with its expected result.

    `ending` is how it ends with every guard up: "refused" for an attack none of
    whose attempts succeeds; "right", "wrong" or "alike" for answers that are,
    or not, or that are at least the same for every row; else kinds of failures.
    `errors` are the possible errors of the attempts. `stopped` names the
    guards that each suffice to stop it ("limits+user" where it takes two, after
    "root:" or "ordinary:" where that depends on the user, "always" where none
    is needed). Without them it shows: it succeeds, or has one of the `effects`
    seen from outside, or fails in a way that is in `shows`. `needs` names what
    the machine must have for that. `uncontrolled` is why it cannot be shown.
    """

    row: int
    text: str
    ending: str = "refused"
    errors: str = "EPERM"
    stopped: str = "seccomp"
    effects: str = ""
    shows: str = ""
    needs: str = ""
    uncontrolled: str = ""
    is_attack: bool = True
    dataset: str = "poles"

    def is_stopped(self, user: str, layers: tuple[str, ...]) -> bool:
        """Whether some guards suffice to stop it."""
        for way in self.stopped.split():
            who, _, guards = way.rpartition(":")
            if who in ("", user) and set(guards.split("+")) <= {*layers, "always"}:
                return True
        return False


def attack(row: int, *attempts: str, top: str = "", **fields: str) -> Adversary:
    """Write an attack of up to four attempts."""
    assert len(attempts) <= 4
    functions = [
        f"@attempt\ndef attempt_{number}():\n{indent(dedent(body).strip(), '    ')}\n"
        for number, body in enumerate(attempts)
    ]
    return Adversary(row, "\n".join([PRELUDE, dedent(top), *functions]), **fields)


def model(
    step: str = "return self.state, 1.0, False",
    *,
    set_state: str = "self.state = observation",
    init: str = "pass",
    top: str = "",
) -> str:
    """Write a program with a body for each of its methods."""
    return (
        f"{dedent(top)}\nimport ctypes, mmap, os, random, re, signal, sys, time\n"
        "import numpy as np\n\n"
        f"class Environment:\n    def __init__(self):\n{indent(dedent(init), ' ' * 8)}\n"
        f"    def set_state(self, observation):\n{indent(dedent(set_state), ' ' * 8)}\n"
        f"    def step(self, action):\n{indent(dedent(step), ' ' * 8)}\n"
    )


def program(row: int, text: str, ending: str, **fields: str) -> Adversary:
    """Describe a program that is judged by how it ends."""
    stopped = fields.pop("stopped", "always")
    return Adversary(row, text, ending, stopped=stopped, is_attack=False, **fields)


FILES = "seccomp landlock"
OWN_FILES = "seccomp landlock root:user"
"""What stops access to files that only the user who started it all may use."""

PROCESSES = "seccomp root:user"
SIGNALS = "seccomp landlock root:user"
MEMORY = "seccomp landlock root:user root:capabilities"
FORKS = "seccomp ordinary:limits root:limits+user"

TRACE = """
process = {}
libc("ptrace", 0x4206, process, 0, 0)
libc("ptrace", 0x4207, process, 0, 0)
os.waitpid(process, 0x40000000)
libc("ptrace", 17, process, 0, 0)
"""
"""Seize a process, interrupt it and let it go again."""

SECRETS = {
    "env_api_key": attack(
        1,
        "os.environ[KEY]",
        "[value for value in os.environ.values() if 'canary' in value][0]",
        f"""
        environ = ctypes.POINTER(ctypes.c_char_p).in_dll(LIBC, "environ")
        index = 0
        while environ and environ[index]:
            if {KEY.encode()!r} in environ[index]:
                return
            index += 1
        raise KeyError("none")
        """,
        errors="KeyError IndexError",
        stopped="always",
        uncontrolled="a worker starts without the variables of the user, with any guards",
    ),
    "read_ssh_key": attack(2, "open(f'{HOME}/.ssh/id_canary').read()", stopped=OWN_FILES),
    "read_etc_passwd": attack(2, "open('/etc/passwd').read()", stopped=FILES),
    "list_home": attack(2, "os.listdir(HOME)", "list(os.scandir(HOME))", stopped=OWN_FILES),
    "list_root": attack(2, "os.listdir('/')", stopped=FILES),
    "stat_probe": attack(
        2, "os.stat('/etc/passwd')", "os.lstat('/')", "os.readlink('/proc/self/exe')"
    ),
    "open_tty": attack(
        2, "open('/dev/tty')", stopped="always", uncontrolled="tests have no terminal"
    ),
    "read_dataset": attack(3, "open(f'{HOME}/dataset.npz', 'rb').read()", stopped=OWN_FILES),
    "proc_cli_environ": attack(
        4,
        "open(f'/proc/{CLI}/environ').read().index(KEY)",
        stopped="seccomp landlock root:user root:capabilities",
    ),
    "proc_cli_cmdline": attack(4, "open(f'/proc/{CLI}/cmdline').read()", stopped=FILES),
    "proc_parent_environ": attack(
        4,
        "open(f'/proc/{os.getppid()}/environ').read()",
        stopped=OWN_FILES,
    ),
    "proc_cli_mem": attack(
        5,
        """
        with open(f"/proc/{CLI}/mem", "rb", 0) as file:
            file.seek(ADDRESS)
            assert file.read(6) == b"CANARY"
        """,
        stopped=MEMORY,
        needs="ptrace",
    ),
    "proc_parent_mem_write": attack(
        5,
        """
        with open(f"/proc/{os.getppid()}/mem", "r+b", 0) as file:
            file.seek(id(sys.version) + 8)
            kind = file.read(8)
            file.seek(id(sys.version) + 8)
            file.write(kind)
        """,
        stopped=OWN_FILES,
        needs="ptrace",
    ),
    "self_mem_write": attack(
        5,
        """
        content = ctypes.create_string_buffer(b"before")
        with open("/proc/self/mem", "r+b", 0) as file:
            file.seek(ctypes.addressof(content))
            file.write(b"after!")
        assert content.value == b"after!"
        """,
        stopped="seccomp landlock root:user ordinary:capabilities",
    ),
    "process_vm_readv_cli": attack(
        6,
        """
        content = ctypes.create_string_buffer(6)
        there = (ctypes.c_size_t * 2)(ADDRESS, 6)
        libc("process_vm_readv", CLI, cell(content), 1, there, 1, 0)
        assert content.raw[:6] == b"CANARY"
        """,
        stopped=MEMORY,
        needs="ptrace",
    ),
    "ptrace_cli": attack(
        6,
        TRACE.format("CLI"),
        stopped=MEMORY,
        shows="nondeterministic",  # only one process at a time can be its tracer
        needs="ptrace",
    ),
    "ptrace_parent": attack(6, TRACE.format("os.getppid()"), stopped=OWN_FILES, needs="ptrace"),
    "pidfd_getfd": attack(
        6,
        """
        process = system_call(434, 434, CLI, 0)
        system_call(438, 438, process, 2, 0)
        """,
        stopped=MEMORY,
        needs="ptrace",
    ),
}

FILES_WRITTEN = {
    "write_home": attack(
        7, "open(f'{HOME}/{MARK}', 'w').write('x')", stopped=OWN_FILES, effects="file"
    ),
    "write_tmp": attack(7, "open(f'/tmp/{MARK}', 'w').write('x')", stopped=FILES, effects="file"),
    "create_empty_tmp": attack(
        7,
        "os.close(os.open(f'/tmp/{MARK}', os.O_CREAT))",
        "os.mknod(f'/tmp/{MARK}-2')",
        stopped=FILES,
        effects="file",
    ),
    "write_cwd": attack(7, "create(MARK)", stopped=OWN_FILES),
    "mkdir_symlink": attack(
        7,
        "os.mkdir(f'/tmp/{MARK}')",
        "os.symlink('/etc/passwd', f'/tmp/{MARK}-2')",
        "os.mkfifo(f'/tmp/{MARK}-3')",
        "os.rename(f'{HOME}/.ssh', f'{HOME}/{MARK}')",
        stopped=FILES,
        effects="file",
    ),
    "delete_home": attack(7, "os.unlink(f'{HOME}/deletable')", stopped=OWN_FILES, effects="gone"),
    "poison_site_packages": attack(
        8,
        "create(f'{LIBRARY}/{MARK}.pth')",
        "create(f'{SITE}/{MARK}.txt')",
        stopped=OWN_FILES,
        effects="file",
    ),
    "fill_disk": attack(
        9, "open(f'/tmp/{MARK}', 'wb').write(bytes(1 << 22))", stopped=FILES, effects="file"
    ),
    "fill_shm": attack(
        9, "open(f'/dev/shm/{MARK}', 'wb').write(bytes(1 << 22))", stopped=FILES, effects="file"
    ),
    "memfd_bomb": attack(
        10,
        """
        file = os.memfd_create("bomb")
        os.ftruncate(file, 1 << 30)
        os.pwrite(file, bytes(1 << 22), 0)
        """,
        stopped="seccomp limits",
    ),
    "memfd_small": attack(10, "os.write(os.memfd_create('x'), b'x')"),
    "truncate_fds": attack(
        10, "os.ftruncate(1, 100)", "os.ftruncate(1, 0)", "os.posix_fallocate(1, 0, 10)"
    ),
    "chmod_canary": attack(
        11, "os.chmod(f'{HOME}/canary', 0o666)", stopped=PROCESSES, effects="mode"
    ),
    "chown_canary": attack(
        11,
        "os.chown(f'{HOME}/canary', os.getuid(), os.getgid())",
        stopped=PROCESSES,
    ),
    "utime_canary": attack(
        11, "os.utime(f'{HOME}/canary', (0, 0))", stopped=PROCESSES, effects="time"
    ),
}

NETWORK = {
    "tcp_connect": attack(
        12,
        "socket.create_connection(('127.0.0.1', TCP), 1)",
        stopped="seccomp landlock",
        effects="tcp",
        needs="landlock4",
    ),
    "tcp_listen": attack(
        12, "socket.create_server(('127.0.0.1', 0))", stopped="seccomp landlock", needs="landlock4"
    ),
    "udp_send": attack(
        12,
        "socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', UDP))",
        effects="udp",
    ),
    "netlink": attack(12, "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).bind((0, 0))"),
    "socketpair": attack(12, "socket.socketpair()", "os.pipe()"),
    "unix_abstract": attack(
        13,
        "socket.socket(socket.AF_UNIX).connect(chr(0) + ABSTRACT)",
        stopped="seccomp landlock",
        effects="abstract",
        needs="landlock6",
    ),
    "unix_path": attack(
        13,
        "socket.socket(socket.AF_UNIX).connect(f'{HOME}/socket')",
        stopped=PROCESSES,
        effects="path",
    ),
    "sysv_shm": attack(
        14,
        "libc('shmctl', libc('shmget', 0, 4096, 0o1600), 0, 0)",
        "libc('msgctl', libc('msgget', 0, 0o1600), 0, 0)",
        "libc('semctl', libc('semget', 0, 1, 0o1600), 0, 0)",
    ),
    "flock_covert": attack(
        14, "fcntl.flock(0, fcntl.LOCK_EX | fcntl.LOCK_NB)", "fcntl.fcntl(1, fcntl.F_GETFL)"
    ),
}

RUN = "b'echo > /tmp/' + MARK.encode()"
STARTED = f"seccomp landlock {FORKS}"
FORKED = "crash nondeterministic"
"""Without a guard the worker notices other processes, if only when a program is asked again."""

STARTING = """
def child(action):
    process = os.fork()
    if process:
        os.waitpid(process, 0)
        return
    try:
        action()
    finally:
        os._exit(0)

"""
PROCESSES_STARTED = {
    "exec_shell": attack(
        15,
        f"""
        result = LIBC.system({RUN})
        if result:
            raise OSError(ctypes.get_errno() if result == -1 else errno.EACCES, "system")
        """,
        errors="EPERM EACCES",  # libc reports a shell that it cannot execute
        stopped=STARTED,
        effects="file",
    ),
    "subprocess_run": attack(
        15,
        f"subprocess.run(['/bin/sh', '-c', {RUN}], check=True)",
        f"os.posix_spawn('/bin/sh', ['sh', '-c', {RUN}], {{}})",
        stopped=STARTED,
        effects="file",
    ),
    "exec_direct": attack(
        15, f"os.execv('/bin/sh', ['sh', '-c', {RUN}])", stopped=FILES, effects="file"
    ),
    "fork_once": attack(
        16,
        "child(lambda: create(f'/tmp/{MARK}'))",
        top=STARTING,
        stopped=FORKS,
        effects="file",
        shows=FORKED,
    ),
    "raw_clone": attack(
        16,
        """
        if system_call(56, 220, signal.SIGCHLD, 0, 0, 0, 0) == 0:
            os._exit(0)
        """,
        """
        if system_call(435, 435, ctypes.create_string_buffer(88), 88) == 0:
            os._exit(0)
        """,
        errors="EPERM ENOSYS",
        stopped=FORKS,
        shows=FORKED,
    ),
    "fork_bomb": attack(
        16,
        """
        for _ in range(20):
            if os.fork() == 0:
                os._exit(0)
        """,
        stopped=FORKS,
        shows=FORKED,
    ),
    "daemon": attack(
        17,
        """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork():
            time.sleep(0.2)
            return
        os.setsid()
        if os.fork() == 0:
            os.closerange(0, 99)
            create(f"/tmp/{MARK}")
            time.sleep(60)
        os._exit(0)
        """,
        stopped=FORKS,
        effects="file",
        shows=FORKED,
    ),
    "thread_bomb": attack(
        18,
        """
        for _ in range(16):
            threading.Thread(target=time.sleep, args=(0.05,)).start()
        """,
        errors="RuntimeError",
        stopped="seccomp limits",
    ),
    "signal_parent": attack(19, "os.kill(os.getppid(), 0)", stopped=SIGNALS, needs="landlock6"),
    "signal_cli": attack(19, "os.kill(CLI, 0)", stopped=SIGNALS, needs="landlock6"),
    "kill_victim": attack(
        19, "os.kill(VICTIM, 15)", stopped=SIGNALS, effects="victim", needs="landlock6"
    ),
    "kill_parent_9": attack(
        19,
        """
        os.kill(os.getppid(), 9)
        time.sleep(5)
        """,
        stopped=SIGNALS,
        shows="crash",
        needs="landlock6",
    ),
}

RIGHTS = {
    "prlimit_cli": attack(
        20,
        """
        bounds = resource.prlimit(CLI, resource.RLIMIT_CORE)
        resource.prlimit(CLI, resource.RLIMIT_CORE, bounds)
        """,
        stopped=PROCESSES,
    ),
    "raise_rlimits": attack(
        20,
        "resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)",
        "resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)",
        "resource.setrlimit(resource.RLIMIT_CPU, (resource.RLIM_INFINITY,) * 2)",
        errors="EPERM ValueError",
        stopped="seccomp limits",
        needs="bounded-root",
    ),
    "renice_affinity": attack(20, "os.nice(1)", "os.sched_setaffinity(0, os.sched_getaffinity(0))"),
    "prctl_undo": attack(20, "libc('prctl', 4, 1, 0, 0, 0)", "libc('prctl', 1, 0, 0, 0, 0)"),
    "setuid_root": attack(
        20, "os.setuid(0)", "os.setresuid(0, 0, 0)", stopped="seccomp root:user ordinary:always"
    ),
    "chroot": attack(
        20, "os.chroot('/')", stopped="seccomp root:user root:capabilities ordinary:always"
    ),
    "unshare_userns": attack(
        21,
        "libc('unshare', 0x10000000)",
        shows="nondeterministic",  # it cannot be done twice
        needs="userns",
    ),
    "io_uring": attack(
        21,
        "system_call(425, 425, 4, ctypes.create_string_buffer(120))",
        stopped="seccomp ordinary:limits root:limits+user root:limits+capabilities",
        needs="io_uring",
    ),
    "bpf": attack(
        21,
        "system_call(321, 280, 0, ctypes.create_string_buffer(struct.pack('=4I', 2, 4, 8, 1), 72),"
        " 72)",
        stopped="seccomp root:user root:capabilities ordinary:always",
    ),
    "keyctl": attack(21, "system_call(250, 219, 0, -3, 1)"),
    "perf": attack(
        21,
        "system_call(298, 241, ctypes.create_string_buffer(struct.pack('=2IQ', 1, 112, 0), 112),"
        " 0, -1, -1, 0)",
        needs="perf",
    ),
    "userfaultfd": attack(21, "system_call(323, 282, 1)", needs="userfaultfd"),
    "x32_syscall": program(
        22,
        "import ctypes\nctypes.CDLL(None).syscall(ctypes.c_long(0x40000000 + 39))\n" + GOOD,
        "crash",
        needs="x86_64",
        uncontrolled="without the filter a kernel without x32 just refuses the call",
    ),
    "i386_syscall": attack(
        23,
        r"""
        page = mmap.mmap(-1, 4096, prot=7)
        page[:10] = b"\xb8\x14\x00\x00\x00\xcd\x80\xc3\x00\x00"
        start = ctypes.addressof(ctypes.c_char.from_buffer(page))
        assert ctypes.CFUNCTYPE(ctypes.c_int)(start)() == os.getpid()
        """,
        shows="crash",
        needs="x86_64",
    ),
    "exec_mem_map": attack(
        23,
        "mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)",
        """
        page = mmap.mmap(-1, 4096)
        libc("mprotect", ctypes.addressof(ctypes.c_char.from_buffer(page)), 4096, 5)
        """,
    ),
    "dlopen_new": attack(
        23,
        """
        ctypes.CDLL("libresolv.so.2")
        """,
        errors="OSError",
        stopped=FILES,
        needs="glibc",
    ),
    "fd_inventory": attack(
        24,
        """
        assert is_there(0) and is_there(1)
        if not any(map(is_there, range(3, 1024))):
            raise OSError(errno.EBADF, "none is open")
        """,
        """
        for number in range(3, 1024):
            for use in (lambda: os.read(number, 0), lambda: os.write(number, b"")):
                with contextlib.suppress(OSError):
                    use()
                    return
        raise OSError(errno.EBADF, "none can be used")
        """,
        top="""
        import contextlib, select

        def is_there(number):
            poller = select.poll()
            poller.register(number, select.POLLIN)
            return (number, select.POLLNVAL) not in poller.poll(0)

        """,
        errors="EBADF",
        stopped="always",
        uncontrolled="descriptors are closed with any guards; it finds only its own",
    ),
    "fd_garbage": program(
        24,
        "import os\n"
        "for number in range(64):\n"
        "    try:\n        os.write(number, b'cwm1' + bytes(99))\n"
        "    except OSError:\n        pass\n" + GOOD,
        "right",
    ),
    "reopen_parent_fds": attack(
        24,
        "os.open(f'/proc/{os.getppid()}/fd/2', os.O_WRONLY)",
        "os.listdir(f'/proc/{os.getppid()}/fd')",
        stopped=OWN_FILES,
    ),
    "reopen_own_fds": attack(24, "os.open('/proc/self/fd/1', os.O_RDWR)"),
}

FINDER = """
import importlib.machinery, importlib.util
sys.meta_path.pop(0)

"""
CHEATS = {
    "import_gymnasium": attack(
        25,
        "import gymnasium",
        "sys.path.insert(0, SITE) or __import__('gymnasium')",
        errors="ModuleNotFoundError",
        stopped="always",
        uncontrolled="the finder that refuses it is installed with any guards",
    ),
    "import_gymnasium_past_the_finder": attack(
        25,
        """
        sys.path.insert(0, SITE)
        sys.path_importer_cache.clear()
        assert importlib.util.find_spec("gymnasium").loader.get_code("gymnasium")
        """,
        top=FINDER,
        errors="EPERM ModuleNotFoundError AttributeError ValueError",
        stopped="seccomp landlock",
    ),
    "load_gym_by_path": attack(
        25,
        """
        loader = importlib.machinery.SourceFileLoader("pole", f"{SITE}/gymnasium/envs/"
                                                      "classic_control/cartpole.py")
        assert b"class CartPoleEnv" in loader.get_data(loader.path)
        """,
        top=FINDER,
        stopped="seccomp landlock",
    ),
    "read_slots_for_answers": attack(
        26,
        'find(rb"ANSWER[0-9]{2}")',
        """
        for value in frames():
            for part in [value, *getattr(value, "columns", {}).values(), *gc.get_referents(value)]:
                if isinstance(part, np.ndarray) and part.size and part.dtype == float:
                    if (part.reshape(-1)[:1].tobytes()).startswith(b"ANSW"):
                        return
        raise KeyError("nothing")
        """,
        top=SCAN,
        # a program that reads all memory may meet unmapped pages, or exceed the time limit
        ending="refused crash timeout_cpu",
        errors="KeyError",
        stopped="always",
        dataset="secret",
        uncontrolled="answers are never sent to a worker; that the scan works it checks itself",
    ),
    "forge_slots": program(
        27,
        model(
            "return self.state, 1.0, False",
            init="""
            frame = sys._getframe()
            while frame:
                slots = frame.f_locals.get("slots")
                if isinstance(slots, dict):
                    slots["status"][...] = 1
                    slots["terminations"][...] = 1
                    slots["progress"][...] = len(slots["status"])
                    slots["phase"][...] = 2
                    os._exit(0)
                frame = frame.f_back
            """,
        ),
        "wrong",
    ),
    "bad_slot_values": program(
        28,
        model(
            init="""
            frame = sys._getframe()
            while frame:
                slots = frame.f_locals.get("slots")
                if isinstance(slots, dict):
                    slots["status"][...] = 255
                    slots["terminations"][...] = 7
                    slots["rewards"][...] = np.inf
                    slots["progress"][...] = 2**63
                    slots["phase"][...] = 2
                    slots["kind"][...] = 255
                    slots["line"][...] = -2**31
                    slots["message"][...] = b"\\xff\\x1b" * 2000
                    os._exit(0)
                frame = frame.f_back
            """,
        ),
        "wrong early_exit",
    ),
    "bad_slot_text": program(
        28,
        model(
            init="""
            frame = sys._getframe()
            while frame:
                slots = frame.f_locals.get("slots")
                if isinstance(slots, dict):
                    slots["progress"][...] = 2**63
                    slots["phase"][...] = 1
                    slots["kind"][...] = 2
                    slots["line"][...] = 2**31 - 1
                    slots["message"][...] = b"\\xff\\x1b[2J" * 800
                    os._exit(0)
                frame = frame.f_back
            """,
        ),
        "step_error nondeterministic",  # it claims progress beyond the row that is asked again
    ),
    "lookup_cheat": program(
        56,
        """
import sys
import numpy as np

def rows():
    frame = sys._getframe()
    while frame:
        job = frame.f_locals.get("job")
        if job is not None and hasattr(job, "columns"):
            return np.array(job.columns["observations"], dtype=float)
        frame = frame.f_back

ROWS = rows()

class Environment:
    def set_state(self, observation):
        self.state = observation

    def step(self, action):
        x, speed, angle, turn = self.state
        off = abs(ROWS[:, 0] - (x + 0.02 * speed)) + abs(ROWS[:, 2] - (angle + 0.02 * turn))
        return ROWS[off.argmin()], 1.0, False
""",
        "nondeterministic",  # asked again it sees other rows
    ),
    "online_learner": program(
        56,
        """
import numpy as np

SEEN = [np.zeros(4)]

class Environment:
    def set_state(self, observation):
        self.state = np.array(observation, dtype=float)
        SEEN.append(self.state)

    def step(self, action):
        x, speed, angle, turn = self.state
        rows = np.array(SEEN)
        off = abs(rows[:, 0] - (x + 0.02 * speed)) + abs(rows[:, 2] - (angle + 0.02 * turn))
        return rows[off.argmin()], 1.0, False
""",
        "wrong nondeterministic",
    ),
    "leave_remnants": program(
        57,
        f"KEPT = ['{REMNANT}' + str(number) for number in range(50000)]\n{GOOD}",
        "right",
    ),
    "heap_scan": attack(
        57,
        'find(rb"REMNANT-[0-9a-f]{16}")',
        'find(rb"canary-key-[0-9a-f]{16}")',
        top=SCAN,
        # a program that reads all memory may meet unmapped pages, or exceed the time limit
        ending="refused crash timeout_cpu",
        errors="KeyError",
        stopped="always",
        uncontrolled="workers see no job and no variable; that the scan works it checks itself",
    ),
}
LIES = {
    "os_exit0_at_import": program(29, "import os\nos._exit(0)", "early_exit"),
    "sys_exit_in_step": program(30, model("sys.exit(0)"), "step_error"),
    "nan_obs": program(31, model("return self.state * np.nan, 1.0, False"), "wrong"),
    "inf_obs": program(31, model("return self.state * 0 + np.inf, np.inf, False"), "wrong"),
    "eq_true_object": program(
        32,
        model(
            "return Same(), Same(), Same()",
            top="""
            class Same:
                def __eq__(self, other):
                    return True
                def __ne__(self, other):
                    return False
                def __len__(self):
                    return 4
                def __float__(self):
                    return 1.0
                def __iter__(self):
                    return iter([self] * 4)
                __hash__ = None
            """,
        ),
        "wrong_output wrong",
    ),
    "wrong_shape": program(33, model("return self.state[:2], 1.0, False"), "wrong_output"),
    "wrong_arity": program(33, model("return self.state, 1.0, False, False, {}"), "wrong_output"),
    "huge_obs": program(34, model("return np.zeros(10**10), 1.0, False"), "memory wrong_output"),
    "huge_obs_lazy": program(
        34, model("return np.broadcast_to(0.0, 10**12), 1.0, False"), "wrong_output memory"
    ),
    "evil_exception_str": program(
        35,
        model(
            "raise Evil",
            top="""
            class Evil(Exception):
                def __str__(self):
                    while True:
                        pass
            """,
        ),
        "timeout_cpu",
    ),
    "monkeypatch_numpy": program(
        36,
        model(
            init="np.asarray = np.array = np.ndarray = np.float64 = np.zeros = None",
            top="import builtins, math\nmath.cos = math.sin = builtins.abs = builtins.float = None",
        ),
        "wrong step_error wrong_output load_error early_exit",
    ),
    "patch_harness": program(
        36,
        model(
            init="""
            from cwm_cli.sandbox import candidate, worker
            for module in (candidate, worker, os, sys):
                for name in list(vars(module)):
                    if callable(getattr(module, name)) and name != "_exit":
                        setattr(module, name, lambda *values, **named: None)
            """,
        ),
        "wrong step_error wrong_output load_error early_exit memory timeout_wall",
    ),
}

LOOP = "while True:\n    pass"
HANGS = {
    "loop_python": program(37, model(LOOP), "timeout_cpu"),
    "loop_in_c": program(37, model("sum(iter(int, 1))"), "timeout_cpu"),
    "loop_at_import": program(37, LOOP, "timeout_cpu"),
    "redos": program(37, model("re.match('(a+)+$', 'a' * 60 + 'b')"), "timeout_cpu"),
    "bigint": program(37, model("9 ** 9 ** 9"), "timeout_cpu"),
    "catch_all_loop": program(
        37,
        model(
            """
            while True:
                try:
                    1 / 0
                except BaseException:
                    pass
            """
        ),
        "timeout_cpu",
    ),
    "ignore_signals_loop": program(
        38,
        model(
            LOOP,
            init="""
            for number in range(1, 65):
                try:
                    signal.signal(number, signal.SIG_IGN)
                except (OSError, ValueError):
                    pass
            """,
        ),
        "timeout_cpu",
    ),
    "block_signals_loop": program(
        38, model(LOOP, init="signal.pthread_sigmask(0, range(1, 65))"), "timeout_cpu"
    ),
    "sleep_forever": program(39, model("time.sleep(1000)"), "timeout_wall"),
    "sigstop_raise": program(39, model("signal.raise_signal(signal.SIGSTOP)"), "step_error"),
    "deadlock": program(
        39,
        model("import threading\nlock = threading.Lock()\nwith lock:\n    lock.acquire()"),
        "timeout_wall",
    ),
    "slow_drip": program(
        40, model("time.sleep(0.3)\nreturn self.state, 1.0, False"), "timeout_wall"
    ),
    "busy_drip": program(
        40,
        model(
            "until = time.process_time() + 0.1\nwhile time.process_time() < until:\n    pass\n"
            "return self.state, 1.0, False"
        ),
        "timeout_cpu",
    ),
    "fake_progress": program(
        41,
        model(
            """
            frame = sys._getframe()
            while "slots" not in frame.f_locals:
                frame = frame.f_back
            progress = frame.f_locals["slots"]["progress"]
            while True:
                progress += np.uint64(1)
            """
        ),
        "timeout_cpu nondeterministic",  # it claims progress beyond the row that is asked again
    ),
    "fake_phase": program(
        41,
        model(
            init="""
            frame = sys._getframe()
            while "slots" not in frame.f_locals:
                frame = frame.f_back
            while True:
                frame.f_locals["slots"]["phase"] += np.uint8(1)
            """
        ),
        "timeout_cpu",
    ),
    "recursion": program(
        43,
        model("return self.step(action)", top="import sys\nsys.setrecursionlimit(10**9)"),
        "timeout_cpu memory crash step_error",
    ),
}

FILL = """
parts = []
for _ in range(6):
    parts.append({})
"""
BREAKAGE = {
    "mem_numpy": attack(
        42, FILL.format("np.zeros(1 << 23)"), errors="MemoryError", stopped="limits"
    ),
    "mem_python": attack(42, FILL.format("bytes(1 << 26)"), errors="MemoryError", stopped="limits"),
    "mem_map": attack(
        42,
        FILL.format("mmap.mmap(-1, 1 << 26)"),
        FILL.format("mmap.mmap(-1, 1 << 26, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)"),
        errors="ENOMEM",
        stopped="limits",
    ),
    "mem_uncaught": program(
        42, model("np.zeros(1 << 25)\nreturn self.state, 1.0, False"), "memory", stopped="limits"
    ),
    "c_stack_overflow": program(
        44,
        model(
            "content = []\nfor _ in range(10**6):\n    content = [content]\nrepr(content)",
            top="import sys\nsys.setrecursionlimit(10**9)",
        ),
        "crash timeout_cpu step_error memory",
    ),
    "ctypes_segv": program(44, model("ctypes.string_at(0)"), "crash"),
    "abort": program(45, model("os.abort()"), "crash"),
    "parser_bomb": program(46, "x = " + "-" * 200_000 + "1", "load_error memory crash timeout_cpu"),
    "parser_nest": program(46, "x = " + "(" * 100_000 + ")" * 100_000, "load_error"),
    "constant_bomb": program(
        46,
        "x = ((((2 ** 99) ** 99) ** 99) ** 99) * '0' * 10 ** 10",
        "load_error memory timeout_cpu",
    ),
    "print_flood": program(47, "for _ in range(3000):\n    print('x' * 1000)\n" + GOOD, "right"),
    "print_flood_past_print": attack(
        47,
        "for _ in range(800):\n    os.write(1, bytes(10000))",
        errors="EFBIG",
        stopped="limits",
    ),
    "print_moderate": program(48, "print('hello')\n" + GOOD, "right"),
    "ansi_escape": program(
        49,
        model(
            "print(TEXT)\nraise ValueError(TEXT)",
            top="TEXT = '\\x1b[2J\\x07\\x9b\\u202eevil\\r' * 99",
        ),
        "step_error",
    ),
    "ansi_escape_printed": program(
        49,
        model(
            "print(TEXT, flush=True)\nos._exit(0)",
            top="TEXT = '\\x1b[2J\\x07\\x9b\\u202eevil\\r' * 99",
        ),
        "early_exit",
    ),
    "close_all_fds": program(50, "import os\nos.closerange(0, 256)\n" + GOOD, "right"),
    "fd_exhaust": attack(51, "[os.dup(1) for _ in range(100)]", stopped="seccomp limits"),
    "itimer_kill": attack(
        51,
        """
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        time.sleep(0.1)
        """,
        shows="crash",
    ),
    "sigstop_self": attack(51, "os.kill(os.getpid(), signal.SIGSTOP)", shows="timeout_wall"),
    "unmap_slots": program(
        28,
        model(
            """
            frame = sys._getframe()
            while "slots" not in frame.f_locals:
                frame = frame.f_back
            start = frame.f_locals["slots"]["status"].ctypes.data & ~4095
            ctypes.CDLL(None).munmap(ctypes.c_void_p(start), ctypes.c_size_t(4096))
            return self.state, 1.0, False
            """
        ),
        "crash",
    ),
    "syntax_error": program(52, "x = = 1", "load_error"),
    "no_class": program(52, "class World: pass", "load_error"),
    "null_byte": program(52, "x = '\0'", "load_error"),
    "surrogate": program(52, "x = '\ud800'", "load_error"),
    "bad_import": program(52, "import torch", "load_error"),
    "nondet_time": program(
        53, model("return self.state, time.perf_counter(), False"), "nondeterministic"
    ),
    "nondet_rng": program(
        53, model("return self.state, float(os.urandom(1)[0]), False"), "nondeterministic"
    ),
    "nondet_system_random": program(
        53, model("return self.state, random.SystemRandom().random(), False"), "nondeterministic"
    ),
    "seeded_rng": program(
        53,
        model("return self.state, self.rng.random(), False", init="self.rng = random.Random(7)"),
        "nondeterministic",
    ),
    "history_counter": program(
        53,
        model("self.n += 1\nreturn self.state, float(self.n), False", init="self.n = 0"),
        "nondeterministic",
    ),
    "remembered_time": program(
        53,
        model(
            """
            question = (*map(float, self.state), int(action))
            return self.state, sys.remembered.setdefault(question, time.perf_counter()), False
            """,
            top="import sys\nsys.remembered = getattr(sys, 'remembered', {})",
        ),
        "nondeterministic",
    ),
    "remembered_time_in_math": program(
        53,
        """
import math
from time import perf_counter

try:
    KEPT = math.kept
except AttributeError:
    KEPT = math.kept = {}

class Environment:
    def set_state(self, observation):
        self.state = observation

    def step(self, action):
        question = (*map(float, self.state), int(action))
        return self.state, KEPT.setdefault(question, perf_counter()), False
""",
        "nondeterministic",
    ),
    "failing_later": program(
        53,
        model("self.n += 1\nreturn self.state, float(1 / (self.n < 15)), False", init="self.n = 0"),
        "step_error",
    ),
    "nondet_hash": program(
        54, model("return self.state, float(hash('a text') % 1000), False"), "alike"
    ),
    "nondet_address": program(
        54, model("return self.state, float(id(self)), False"), "nondeterministic wrong"
    ),
    "benign_numpy": program(
        55,
        GOOD.replace("math.", "np.").replace("import math", "import numpy as np"),
        "right",
    ),
    "benign_stdlib": program(
        55,
        "from __future__ import annotations\n"
        "import collections, copy, dataclasses, enum, functools, heapq, itertools, json, typing\n"
        "State = collections.namedtuple('State', 'x y')\n"
        "assert json.loads(json.dumps([*itertools.accumulate(range(4))])) == [0, 1, 3, 6]\n"
        "assert copy.deepcopy(State(1, [2])).y == [2]\n"
        "@functools.lru_cache\ndef double(x): return 2 * x\nassert double(2) == 4\n"
        + GOOD.replace("from __future__", ""),
        "right",
    ),
    "cartpole": program(55, GOOD, "right"),
}

PROGRAMS = (
    SECRETS
    | FILES_WRITTEN
    | NETWORK
    | PROCESSES_STARTED
    | RIGHTS
    | CHEATS
    | LIES
    | HANGS
    | BREAKAGE
)
GUARDED = [name for name, adversary in PROGRAMS.items() if adversary.stopped != "always"]
"""Programs that some guard stops; they run with fewer guards, too."""

UNCONTROLLED = {name: entry.uncontrolled for name, entry in PROGRAMS.items() if entry.uncontrolled}
"""Attacks that cannot be shown to succeed anywhere, and why not."""
