"""What an answer may try: the data of `test_attacks.py`, as code that runs in a student's process.

REFUSED holds what must be refused: each fills `won` with the numbers of what worked. UNEARNED holds answers to exercise
5.1 that are wrong and want its points. BREAKING holds what must end the process in time.
"""

# Before each of REFUSED; the names in capitals that are not defined here come from the test.
PRELUDE = '''
import ctypes, errno, fcntl, mmap, os, platform, resource, signal, socket, struct, sys, threading, time
import numpy as np
import torch

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
nobody = ctypes.c_void_p(0)
victim = VICTIM.encode()
here = -100  # AT_FDCWD


def kernel(name, *given):
    """Call the kernel itself, past Python and the C library."""
    return libc.syscall(NUMBERS[name], *given)


def works(attempt):
    """Say whether an attempt succeeded: it did not raise, and did not give -1 or nothing."""
    try:
        got = attempt()
    except BaseException:
        return False
    return got is None or not (got is False or (isinstance(got, int) and got == -1))


def wins(*attempts):
    return [number for number, attempt in enumerate(attempts) if works(attempt)]


def forked(name, *given):
    """Become two processes; the second one ends at once."""
    got = kernel(name, *given)
    if got == 0:
        os._exit(0)
    return got


def read(attempt):
    """Say whether something was read."""
    got = attempt()
    return len(got) > 0


address = struct.pack("=HH4s8x", 2, socket.htons(TCP), socket.inet_aton("127.0.0.1"))
'''

REFUSED = {
    # --- others' processes
    "kills": "won = wins(lambda: os.kill(BYSTANDER, 9), lambda: os.kill(PARENT, 0), lambda: os.kill(-1, 0))",
    "kills a group": (
        "won = wins(lambda: os.killpg(BYSTANDER, 9), lambda: os.killpg(os.getpgid(PARENT), 0),"
        " lambda: libc.killpg(BYSTANDER, 9), lambda: kernel('kill', -BYSTANDER, 9))"
    ),
    "kills by C": "won = wins(lambda: libc.kill(BYSTANDER, 9), lambda: kernel('kill', BYSTANDER, 9))",
    "kills a thread": (
        "won = wins(lambda: kernel('tkill', BYSTANDER, 9), lambda: kernel('tgkill', BYSTANDER, BYSTANDER, 9),"
        " lambda: libc.sigqueue(BYSTANDER, 9, nobody),"
        " lambda: kernel('rt_tgsigqueueinfo', BYSTANDER, BYSTANDER, 10, ctypes.create_string_buffer(128)))"
    ),
    "kills by a file descriptor": (
        "won = wins(lambda: os.pidfd_open(BYSTANDER), lambda: kernel('pidfd_open', BYSTANDER, 0),"
        " lambda: signal.pidfd_send_signal(os.pidfd_open(BYSTANDER), 9))"
    ),
    "takes others' limits": (
        "limit = struct.pack('QQ', 1, 1)\n"
        "won = wins(lambda: resource.prlimit(BYSTANDER, resource.RLIMIT_NOFILE, (1, 1)) is not None,"
        " lambda: kernel('prlimit64', BYSTANDER, 7, limit, None),"
        " lambda: resource.prlimit(PARENT, resource.RLIMIT_CORE, (0, 0)) is not None)"
    ),
    "raises its own limits": (
        "most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]\n"
        "won = wins(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most - 1, most)),"
        " lambda: libc.setrlimit(1, struct.pack('QQ', 5, 5)), lambda: kernel('setrlimit', 1, struct.pack('QQ', 5, 5)))"
    ),
    "slows others": (
        "won = wins(lambda: os.setpriority(os.PRIO_PROCESS, BYSTANDER, 19),"
        " lambda: os.sched_setaffinity(BYSTANDER, {0}), lambda: kernel('ioprio_set', 1, BYSTANDER, 3 << 13),"
        " lambda: os.sched_setscheduler(BYSTANDER, os.SCHED_BATCH, os.sched_param(0)))"
    ),
    "traces and reads others' memory": (
        "room = ctypes.create_string_buffer(8)\nwhere = struct.pack('PN', ctypes.addressof(room), 8)\n"
        "won = wins(lambda: kernel('ptrace', 16, BYSTANDER, 0, 0), lambda: kernel('ptrace', 0x4206, BYSTANDER, 0, 0),"
        " lambda: kernel('process_vm_readv', os.getpid(), where, 1, where, 1, 0),"
        " lambda: kernel('process_vm_writev', os.getpid(), where, 1, where, 1, 0),"
        " lambda: kernel('kcmp', os.getpid(), os.getpid(), 0, 0, 0))"
    ),
    "reads other processes in /proc": (
        "won = wins(*(lambda p=p, n=n: os.open(f'/proc/{p}/{n}', os.O_RDONLY) for p in (PARENT, BYSTANDER, 'self')"
        " for n in ('mem', 'environ', 'maps', 'cmdline', 'stat')), *(lambda p=p: os.listdir(f'/proc/{p}/fd') for p in"
        " (PARENT, 'self')), lambda: libc.open(b'/proc/%d/environ' % PARENT, 0), lambda: os.listdir('/proc'))"
    ),
    "is no longer found": "won = wins(lambda: libc.prctl(1, 0) == 0, lambda: libc.prctl(4, 0) == 0)",
    "leaves its session": (
        "won = wins(lambda: kernel('setsid'), lambda: kernel('setpgid', 0, 0), lambda: libc.daemon(1, 1), os.setsid)"
    ),
    # --- processes of its own
    "forks": "won = wins(lambda: os.fork() or os._exit(0), lambda: libc.fork() or os._exit(0), lambda: forked('fork'))",
    "forks by vfork and clone": (
        "won = wins(lambda: forked('vfork'), lambda: forked('clone', 17, 0, 0, 0, 0),"
        " lambda: forked('clone', 0x80000000 | 17, 0, 0, 0, 0))"
    ),
    "forks by clone3": (
        "how = struct.pack('8Q', 0, 0, 0, 0, 17, 0, 0, 0)\nwon = wins(lambda: forked('clone3', how, len(how)))"
    ),
    "forks as a bomb": "won = wins(*[lambda: os.fork() or os._exit(0), lambda: forked('fork')] * 200)",
    "starts a program": (
        "import subprocess\nwon = wins(lambda: subprocess.run(['true']), lambda: os.system('true') or None,"
        " lambda: os.posix_spawn('/bin/true', ['true'], {}), lambda: os.popen('true').close())"
    ),
    "starts a program past Python's hook": (
        "import subprocess\naudit, sys.audit = sys.audit, lambda *_: None\n"
        "won = wins(lambda: subprocess.Popen(['true']), lambda: libc.system(b'true') == 0,"
        " lambda: libc.popen(b'true', b'r') or -1,"
        " lambda: libc.posix_spawn(ctypes.byref(ctypes.c_int()), b'/bin/true', None, None, (ctypes.c_char_p *"
        " 2)(b'true', None), nobody) == 0)\n"
        "sys.audit = audit"
    ),
    "becomes another program": (
        "name = (ctypes.c_char_p * 2)(b'true', None)\n"
        "won = wins(lambda: os.execv('/bin/true', ['true']), lambda: libc.execve(b'/bin/true', name, None),"
        " lambda: kernel('execve', b'/bin/true', name, None), lambda: kernel('execveat', here, b'/bin/true',"
        " name, None, 0))"
    ),
    "loads a library through the environment": (
        "os.environ['LD_PRELOAD'] = '/nowhere.so'\n"
        "won = wins(lambda: os.execve(sys.executable, [sys.executable, '-c', ''], os.environ))"
    ),
    # --- the network
    "connects": (
        "won = wins(lambda: socket.create_connection(('127.0.0.1', TCP)).sendall(b'stolen'),"
        " lambda: socket.socket(), lambda: socket.getaddrinfo('localhost', TCP))"
    ),
    "sends a datagram": (
        "won = wins(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'stolen', ('127.0.0.1', UDP)))"
    ),
    "connects by C": (
        "def send():\n    number = libc.socket(2, 1, 0)\n    libc.connect(number, address, 16)\n"
        "    return os.write(number, b'stolen')\n"
        "won = wins(send, lambda: libc.socket(2, 1, 0), lambda: kernel('socket', 2, 2, 0),"
        " lambda: kernel('socket', 10, 1, 0))"
    ),
    "sockets of other families": (
        "won = wins(lambda: socket.socket(socket.AF_UNIX), lambda: kernel('socket', 16, 3, 0),"
        " lambda: kernel('socket', 17, 3, 0), lambda: kernel('socket', 40, 1, 0), lambda: kernel('socket', 38, 5, 0))"
    ),
    "hands over descriptors": (
        "a, b = socket.socketpair()\nwon = wins(lambda: socket.send_fds(a, [b'x'], [0]), lambda: a.send(b'x'),"
        " lambda: a.sendto(b'x', b'nobody'), lambda: a.bind('name'), lambda: a.listen())"
    ),
    "io_uring": "won = wins(lambda: kernel('io_uring_setup', 4, ctypes.create_string_buffer(256)))",
    # --- others' files
    "chmod": (
        "won = wins(lambda: os.chmod(VICTIM, 0o777), lambda: libc.chmod(victim, 0o777),"
        " lambda: libc.fchmodat(here, victim, 0o777, 0), lambda: kernel('fchmodat2', here, victim, 0o777, 0),"
        " lambda: kernel('chmod', victim, 0o777), lambda: kernel('fchmodat', here, victim, 0o777),"
        " lambda: os.chmod(os.path.dirname(VICTIM), 0))"
    ),
    "chown": (
        "won = wins(lambda: os.chown(VICTIM, os.getuid(), os.getgid()), lambda: libc.chown(victim, -1, os.getgid()),"
        " lambda: kernel('fchownat', here, victim, -1, os.getgid(), 0), lambda: os.lchown(VICTIM, -1, os.getgid()))"
    ),
    "utime": (
        "won = wins(lambda: os.utime(VICTIM, (1, 1)), lambda: libc.utime(victim, None), lambda:"
        " libc.utimes(victim, None),"
        " lambda: kernel('utimensat', here, victim, None, 0), lambda: kernel('utime', victim, None),"
        " lambda: kernel('futimesat', here, victim, None))"
    ),
    "setxattr": (
        "won = wins(lambda: os.setxattr(VICTIM, 'user.a', b'b'), lambda: libc.setxattr(victim, b'user.a', b'b', 1, 0),"
        " lambda: kernel('lsetxattr', victim, b'user.a', b'b', 1, 0), lambda: os.removexattr(VICTIM, 'user.mark'),"
        " lambda: kernel('setxattr', victim, b'user.a', b'b', 1, 0), lambda: kernel('removexattr', victim,"
        " b'user.mark'))"
    ),
    "links": (
        "won = wins(lambda: os.link(VICTIM, 'mine'), lambda: os.symlink(VICTIM, 'mine'), lambda:"
        " libc.link(victim, b'm'),"
        " lambda: libc.symlink(victim, b'm'), lambda: kernel('linkat', here, victim, here, b'm', 0),"
        " lambda: kernel('symlinkat', victim, here, b'm'), lambda: os.symlink('/etc', VICTIM + '2'))"
    ),
    "renames": (
        "open('mine', 'w').close()\nwon = wins(lambda: os.rename(VICTIM, VICTIM + '2'), lambda:"
        " os.replace('mine', VICTIM),"
        " lambda: libc.rename(victim, b'm'), lambda: libc.rename(b'mine', victim),"
        " lambda: kernel('renameat', here, victim, here, b'm'), lambda: kernel('renameat2', here, victim, here,"
        " b'm', 0))"
    ),
    "truncates": (
        "won = wins(lambda: os.truncate(VICTIM, 0), lambda: libc.truncate(victim, 0), lambda:"
        " kernel('truncate', victim, 0),"
        " lambda: open(VICTIM, 'w'), lambda: libc.open(victim, os.O_RDONLY | os.O_TRUNC),"
        " lambda: libc.open(victim, 3 | os.O_TRUNC), lambda: libc.creat(victim, 0o600))"
    ),
    "truncates what it may only read": (  # Landlock alone does not see this before Linux 6.2
        "open('mine', 'w').write('x')\nopen_ = libc.open\n"
        "won = wins(lambda: open_(b'mine', os.O_RDONLY | os.O_TRUNC), lambda: open_(b'mine', 3 | os.O_TRUNC),"
        " lambda: kernel('openat', here, b'mine', os.O_TRUNC, 0), lambda: kernel('open', b'mine', os.O_TRUNC, 0),"
        " lambda: os.path.getsize('mine') == 0)"
    ),
    "writes and deletes": (
        "folder = os.path.dirname(VICTIM)\n"
        "won = wins(lambda: open(VICTIM, 'a'), lambda: os.remove(VICTIM), lambda: libc.unlink(victim) or"
        " os.stat(VICTIM) and"
        " False, lambda: os.mkdir(folder + '/new'), lambda: libc.mkdir((folder + '/new').encode(), 0o700),"
        " lambda: os.rmdir(folder), lambda: libc.open((folder + '/new').encode(), os.O_CREAT | os.O_WRONLY, 0o600),"
        " lambda: os.mkfifo(folder + '/new'), lambda: kernel('mknodat', here, b'device', 0o20666, 0x103))"
    ),
    "attributes of files that it may read": (  # on a file that stays as it was if this works, too
        "file = os.open(os.__file__, os.O_RDONLY)\nflags = ctypes.c_long()\n"
        "won = wins(lambda: libc.ioctl(file, 0x80086601, ctypes.byref(flags)),"
        " lambda: libc.ioctl(file, 0x40086602, ctypes.byref(flags)), lambda: libc.ioctl(file, 0x801C581F, bytes(64)),"
        " lambda: fcntl.ioctl(file, 0x801C581F, bytes(64)))"
    ),
    "locks, leases and signals by fcntl and ioctl": (
        "file = os.open('mine', os.O_RDWR | os.O_CREAT)\nend, other = os.pipe()\n"
        "won = wins(*(lambda c=c: fcntl.fcntl(end, c, BYSTANDER) for c in (8, 10, 15)),"
        " lambda: libc.fcntl(end, 8, BYSTANDER), lambda: fcntl.fcntl(file, 1024, 1), lambda: fcntl.fcntl(file,"
        " 1026, 1),"
        " *(lambda r=r: libc.ioctl(end, r, ctypes.byref(ctypes.c_int(BYSTANDER))) for r in (0x8901, 0x8902, 0x5412)))"
    ),
    "types into the terminal": (
        "won = wins(lambda: os.open('/dev/tty', os.O_RDWR), lambda: os.open('/dev/console', os.O_RDWR),"
        " lambda: [fcntl.ioctl(n, 0x5412, b'x') for n in range(3)], lambda: os.openpty(), lambda: kernel('vhangup'))"
    ),
    # --- memory and the system
    "memory that is not counted": (
        "won = wins(lambda: mmap.mmap(-1, 2**20), lambda: kernel('memfd_create', b'm', 0), lambda:"
        " os.memfd_create('m'),"
        " lambda: kernel('memfd_secret', 0), lambda: libc.shm_open(b'/m', os.O_CREAT | os.O_RDWR, 0o600),"
        " lambda: kernel('shmget', 0, 2**20, 0o1600), lambda: torch.ones(4).share_memory_().is_shared() or -1)"
    ),
    "messages and semaphores": (
        "won = wins(lambda: kernel('mq_open', b'm', os.O_CREAT | os.O_RDWR, 0o600, None),"
        " lambda: kernel('msgget', 0, 0o1600), lambda: kernel('semget', 0, 1, 0o1600),"
        " lambda: __import__('_multiprocessing').SemLock(0, 1, 1, '/m', True))"
    ),
    "watches": (
        "won = wins(lambda: kernel('inotify_init1', 0), lambda: kernel('fanotify_init', 0, 0),"
        " lambda: kernel('perf_event_open', bytes(128), 0, -1, -1, 0), lambda: kernel('userfaultfd', 1),"
        " lambda: kernel('bpf', 0, bytes(128), 128), lambda: kernel('add_key', b'user', b'k', b'v', 1, -3),"
        " lambda: kernel('keyctl', 0, -3, 1))"
    ),
    "changes the system": (
        "won = wins(lambda: kernel('unshare', 0x10000000), lambda: kernel('setns', 0, 0),"
        " lambda: kernel('mount', b'none', b'.', b'tmpfs', 0, None), lambda: kernel('chroot', b'.'),"
        " lambda: kernel('personality', 0x40000), lambda: kernel('setuid', 0), lambda: kernel('setgroups', 0, None),"
        " lambda: kernel('timer_create', 0, None, ctypes.byref(ctypes.c_long())))"
    ),
    "files without a name": (
        "won = wins(lambda: os.open('.', os.O_TMPFILE | os.O_RDWR), lambda: libc.open(b'.', 0o20200002, 0o600),"
        " lambda: kernel('openat', here, b'.', os.O_TMPFILE | os.O_RDWR, 0o600))"
    ),
    "removes what it goes on using": (  # the disk would be full of files that nobody sees
        "open('mine', 'w').write('x')\nwon = wins(lambda: os.remove('mine') or not os.path.exists('mine'),"
        " lambda: libc.unlink(b'mine') or not os.path.exists('mine'), lambda: os.replace('mine', 'other'))"
    ),
    "space without writing": "won = wins(lambda: os.posix_fallocate(os.open('a', os.O_CREAT | os.O_RDWR), 0, 2**25))",
    "writes more than a file may hold": (
        "def fill():\n    with open('big', 'wb') as file:\n        file.seek(2**35)\n        file.write(b'x')\n"
        "won = wins(fill, lambda: os.truncate('big', 2**33), lambda: os.ftruncate(os.open('big', os.O_RDWR), 2**33))"
    ),
    # --- what is right
    "reads": (
        "won = wins(*(lambda p=p: read(lambda: open(p, 'rb').read(9)) for p in SECRETS),"
        " *(lambda p=p: read(lambda: os.read(os.open(p, os.O_RDONLY), 9)) for p in SECRETS),"
        " *(lambda p=p: os.listdir(os.path.dirname(p)) for p in SECRETS if '/checks/' not in p))"
    ),
    "reads by C": (
        "won = wins(*(lambda p=p: libc.open(p.encode(), 0) for p in SECRETS),"
        " *(lambda p=p: kernel('openat', here, p.encode(), 0, 0) for p in SECRETS),"
        " *(lambda p=p: kernel('openat2', here, p.encode(), bytes(24), 24) for p in SECRETS),"
        " *(lambda p=p: libc.fopen(p.encode(), b'r') or -1 for p in SECRETS))"
    ),
    "reads through a path's descriptor": (
        "def through(path):\n    number = libc.open(path.encode(), os.O_PATH)\n"
        "    if number < 0:\n        return -1\n"
        "    return libc.open(b'/proc/self/fd/%d' % number, 0)\n"
        "won = wins(*(lambda p=p: through(p) for p in SECRETS),"
        " lambda: kernel('name_to_handle_at', here, victim, bytes(200), bytes(8), 0))"
    ),
    "reads with torch": (
        "won = wins(*(lambda p=p: read(lambda: bytes(torch.UntypedStorage.from_file(p, False, 9))) for p in SECRETS),"
        " *(lambda p=p: torch.from_file(p, size=2, dtype=torch.uint8) for p in SECRETS),"
        " *(lambda p=p: torch.load(p) for p in SECRETS), *(lambda p=p: torch.load(p, mmap=True) for p in SECRETS))"
    ),
    "reads with NumPy and mmap": (
        "won = wins(*(lambda p=p: read(lambda: np.fromfile(p, 'u1', 9)) for p in SECRETS),"
        " *(lambda p=p: np.memmap(p, 'u1', 'r') for p in SECRETS),"
        " *(lambda p=p: read(lambda: np.loadtxt(p, str)) for p in SECRETS),"
        " *(lambda p=p: mmap.mmap(os.open(p, 0), 0, access=mmap.ACCESS_READ) for p in SECRETS))"
    ),
    "reads with Python's tools": (
        "import linecache, pathlib, runpy, shutil, sqlite3, tokenize\n"
        "won = wins(*(lambda p=p: read(lambda: linecache.getlines(p)) or -1 for p in SECRETS),"
        " *(lambda p=p: read(lambda: pathlib.Path(p).read_bytes()) for p in SECRETS),"
        " *(lambda p=p: tokenize.open(p) for p in SECRETS), *(lambda p=p: shutil.copy(p, 'copy') for p in SECRETS),"
        " *(lambda p=p: runpy.run_path(p) for p in SECRETS if p.endswith('.py')),"
        " *(lambda p=p: sqlite3.connect(p).execute('select * from sqlite_master').fetchall() for p in SECRETS))"
    ),
    "imports what is right": (
        "import importlib.util as util, zipimport\n"
        "names = ('classroom.hidden', 'classroom.hidden.ch05', 'classroom.judge', 'classroom.grading',"
        " 'tests.helpers.solutions',"
        " 'tools.notebooks.editions')\n"
        "def by_path(path):\n    spec = util.spec_from_file_location('stolen', path)\n"
        "    spec.loader.exec_module(util.module_from_spec(spec))\n"
        "won = wins(*(lambda n=n: __import__(n, fromlist=['x']) for n in names),"
        " *(lambda p=p: by_path(p) for p in SECRETS if p.endswith(('.py', '.pyc'))),"
        " lambda: zipimport.zipimporter(VICTIM))"
    ),
    "brings the checks back": (
        "import importlib, inspect, pkgutil\nsys.path.insert(0, os.path.dirname(os.path.dirname(COURSE)))\n"
        "hidden = sys.modules.pop('course_lib.exercises', None)\nsys.modules.pop('course_lib', None)\n"
        "importlib.invalidate_caches()\n"
        "won = wins(lambda: __import__('course_lib.exercises.ch05', fromlist=['x'])._lstm, lambda:"
        " read(lambda: inspect.getsource(importlib.import_module('course_lib.exercises'))),"
        " lambda: read(lambda: pkgutil.get_data('course_lib', 'checks/ch05.py')))\n"
        "sys.modules['course_lib.exercises'] = hidden"
    ),
    "looks through all objects": (  # strings in pieces, or it would find itself
        "import gc\nsigns = 'right' + '_lstm_cell', 'draw' + '_lstm_cell', 'along' + '_the_cell', 'par' +"
        " 'ameter_counts'\n"
        "def holds(thing):\n    return (isinstance(thing, dict) and any(s in thing for s in signs)) or (\n"
        "        getattr(thing, '__module__', '') in ('classroom.hidden', 'classroom.judge', 'classroom.grading'))\n"
        "won = [str(type(thing)) for thing in gc.get_objects() if holds(thing)][:3]\n"
        "won += [name for name in sys.modules if name.startswith(('classroom.hidden', 'classroom.judge', 'tests'))]\n"
        "frame = sys._getframe()\nwhile frame:\n"
        "    won += [name for name in frame.f_locals if name in ('wanted', 'right', 'seed')]\n    frame = frame.f_back"
    ),
}  # fmt: skip

# Answers to 5.1 that are wrong. After each, right answers to 5.2 and 5.7 must still get their points.
WRONG = "def lstm_cell(x, h, c, *rest):\n    return h, c"
UNEARNED = {
    "prints that it passed": f"print('passed: lstm_cell')\n{WRONG.replace('return', 'print(chr(112)); return')}",
    "says that it passed": "def lstm_cell(*given):\n    return 'passed: lstm_cell\\n'",
    "raises that it passed": "def lstm_cell(*given):\n    raise AssertionError('passed: lstm_cell')",
    "raises a check's error": (
        "class CheckFailed(Exception):\n    pass\ndef lstm_cell(*given):\n    raise CheckFailed('passed: lstm_cell')"
    ),
    "says nothing was attempted": "def lstm_cell(*given):\n    raise NotImplementedError",
    "returns nothing": "def lstm_cell(*given):\n    return None",
    "returns NaN": "def lstm_cell(x, h, c, *rest):\n    return h * float('nan'), c * float('nan')",
    "returns infinity": "def lstm_cell(x, h, c, *rest):\n    return h / 0, c / 0",
    "returns no numbers": "def lstm_cell(x, h, c, *rest):\n    return h[:0], c[:0]",
    "returns what broadcasts": "def lstm_cell(x, h, c, *rest):\n    return h[:1, :1] * 0, c[:1, :1] * 0",
    "returns an expanded tensor": "def lstm_cell(x, h, c, *rest):\n    return h.new_zeros(1).expand(2**40), c",
    "returns a list in itself": (
        "def lstm_cell(x, h, c, *rest):\n    both = [h, c]\n    both.append(both)\n    return both"
    ),
    "returns lists that share lists": (
        "def lstm_cell(x, h, c, *rest):\n    a = []\n    for _ in range(60):\n        a = [a, a]\n    return a"
    ),
    "returns 200 MB": "def lstm_cell(x, h, c, *rest):\n    return h, 'x' * (200 * 2**20)",
    "returns 200 MB of numbers": "def lstm_cell(x, h, c, *rest):\n    return h, h.new_zeros(25 * 2**20)",
    "returns half a character": "def lstm_cell(x, h, c, *rest):\n    return '\\ud800' * 9, '\\0\\x1b[31m'",
    "returns a hundred thousand signs": "def lstm_cell(x, h, c, *rest):\n    return '-' * 100000, '<b>' * 9999",
    "returns a number of a million digits": "def lstm_cell(x, h, c, *rest):\n    return 1 << 3_000_000, c",
    "returns keys that collide": (
        "def lstm_cell(x, h, c, *rest):\n    return {k * (2**61 - 1): 0 for k in range(1, 1500)}"
    ),
    "uses what it should write": (
        "from torch import nn\ndef lstm_cell(x, h, c, w, u, b):\n"
        "    cell = nn.LSTMCell(x.shape[1], h.shape[1]).double()\n"
        "    cell.weight_ih.data, cell.weight_hh.data, cell.bias_ih.data = w, u, b\n    cell.bias_hh.data.zero_()\n"
        "    return cell(x, (h, c))"
    ),
    "returns types of torch's own": (
        "import torch\ndef lstm_cell(x, h, c, *rest):\n"
        "    return torch.quantize_per_tensor(h.float(), 1.0, 0, torch.qint8), torch.empty(h.shape, device='meta')"
    ),
    "is equal to everything": (
        "class Yes:\n    def __eq__(self, other):\n        return True\n    __ne__ = __lt__ = __gt__ = lambda"
        " *_: False\n"
        "    __hash__ = None\n    shape = (2, 3)\n    def __float__(self):\n        return 1.0\n"
        "    def tolist(self):\n        return [1.0]\n    def __array__(self, *_, **__):\n        return [[1.0]]\n"
        "def lstm_cell(x, h, c, *rest):\n    return Yes(), Yes()"
    ),
    "is a tensor that says yes": (
        "import torch\nclass Yes(torch.Tensor):\n    @classmethod\n"
        "    def __torch_function__(cls, function, types, args=(), kwargs=None):\n        return True\n"
        "def lstm_cell(x, h, c, *rest):\n    return h.as_subclass(Yes), c.as_subclass(Yes)"
    ),
    "is a list that never ends": (
        "class Endless(list):\n    def __iter__(self):\n        while True:\n            yield 1.0\n"
        "def lstm_cell(x, h, c, *rest):\n    return Endless()"
    ),
    "has a repr that never ends": (
        "class Odd:\n    def __repr__(self):\n        while True:\n            pass\n    __str__ = __float__ ="
        " __repr__\n"
        "def lstm_cell(x, h, c, *rest):\n    return {Odd(), Odd()}"
    ),
    "raises what cannot be shown": (
        "class Odd(Exception):\n    def __str__(self):\n        raise SystemExit('no')\n    __repr__ = __str__\n"
        "def lstm_cell(*given):\n    raise Odd"
    ),
    "raises what shows no text": (
        "class Odd(Exception):\n    def __str__(self):\n        return 5\ndef lstm_cell(*given):\n    raise Odd"
    ),
    "raises what never ends showing": (
        "class Odd(Exception):\n    def __str__(self):\n        while True:\n            pass\n"
        "def lstm_cell(*given):\n    raise Odd"
    ),
    "raises 5 MB": "def lstm_cell(*given):\n    raise ValueError('x\\x1b[31m\\ud800' * 10**6)",
    "raises a name of 5 MB": "def lstm_cell(*given):\n    raise type('E' * 5 * 2**20, (Exception,), {})",
    "raises errors in errors": (
        "def lstm_cell(*given):\n    error = ValueError('x')\n    for _ in range(10**5):\n"
        "        error = ExceptionGroup('y', [error])\n    raise error"
    ),
    "exits": "import sys\ndef lstm_cell(*given):\n    sys.exit(0)",
    "ends the process": "import os\ndef lstm_cell(*given):\n    os._exit(0)",
    "ends the process at once": "import os\nos._exit(0)",
    "crashes": "import ctypes\ndef lstm_cell(*given):\n    ctypes.string_at(0)",
    "stops itself": "import os, signal\ndef lstm_cell(*given):\n    os.kill(os.getpid(), signal.SIGSTOP)",
    "loops": "def lstm_cell(*given):\n    while True:\n        pass",
    "loops at once and listens to nobody": (
        "while True:\n    try:\n        while True:\n            pass\n    except BaseException:\n        pass"
    ),
    "sleeps": "import time\ndef lstm_cell(*given):\n    time.sleep(10_000)",
    "never collects what it spoils": (
        "import gc, signal, sys, atexit\ngc.disable()\nsignal.setitimer(signal.ITIMER_PROF, 0)\n"
        "signal.signal(signal.SIGPROF, signal.SIG_IGN)\nsys.setrecursionlimit(10**6)\natexit.register(print)\n"
        f"sys.settrace(None)\nsys.setprofile(None)\n{WRONG}"
    ),
    "traces the questions": (
        "import sys\ndef look(frame, event, value):\n    if event == 'return' and frame.f_code.co_name =="
        " 'lstm_cell':\n"
        f"        frame.f_locals['h'] = 0\n    return look\nsys.settrace(look)\n{WRONG}\nsys.settrace(None)"
    ),
    "takes all memory": "def lstm_cell(x, h, c, *rest):\n    big = [bytearray(2**33)] * 9\n    return h, c",
    "recurses": "def lstm_cell(*given):\n    return lstm_cell(*given)",
    "patches torch's comparison": (
        "import torch\ntorch.allclose = torch.equal = torch.isclose = lambda *a, **k: True\n"
        f"torch.Tensor.allclose = torch.Tensor.equal = torch.allclose\n{WRONG}"
    ),
    "patches the checks": (
        "import course_lib.exercises as checks\nchecks.close = checks.near = lambda *a, **k: True\n"
        f"checks.expect_tensor = lambda value, *a, **k: value\nchecks.Wrong = type('No', (), {{}})\n{WRONG}"
    ),
    "patches the worker's plain": (
        "import sys\nwire = sys.modules['classroom.wire']\nold = wire.plain\n"
        f"wire.plain = lambda value: old('passed' if hasattr(value, '__len__') and hasattr(value[0], 'tanh') and"
        f" not hasattr(value, 'tanh') else value)\n{WRONG}"
    ),
    "patches the worker's encoding": (
        "import sys\nwire = sys.modules['classroom.wire']\nold = wire.encoded\ndef new(message):\n"
        "    if 'got' in message and message['got'] is not None:\n        wire.encoded = old\n"
        f"        message['got'] = 'passed'\n    return old(message)\nwire.encoded = new\n{WRONG}"
    ),
    "patches the worker itself": (
        "import sys, gc\nframe = sys._getframe()\nwhile frame.f_back:\n    frame = frame.f_back\n"
        f"frame.f_globals['described'] = lambda error: 'passed: lstm_cell'\n{WRONG}"
    ),
    "calls the check's own answer": (
        "def lstm_cell(*given):\n    from course_lib.exercises import ch05\n"
        "    right = ch05._lstm(*given)\n    return right['h'], right['c']"
    ),
    "asks every frame": (
        "import sys\ndef lstm_cell(x, h, c, *rest):\n    frame, found = sys._getframe(), []\n    while frame:\n"
        "        found += [v for k, v in frame.f_locals.items() if k in ('wanted', 'right')]\n        frame ="
        " frame.f_back\n"
        "    return found[0] if found else (h, c)"
    ),
    "finds the pipe and forges a reply": (
        "import json, os, struct, sys\ndef lstm_cell(x, h, c, *rest):\n    frame = sys._getframe()\n"
        "    while frame and 'outbox' not in frame.f_locals:\n        frame = frame.f_back\n"
        "    number, out = frame.f_locals['message']['number'], frame.f_locals['outbox'].fileno()\n"
        "    raw = json.dumps({'dict': [['number', number], ['got', 'passed: lstm_cell\\n']]}).encode()\n"
        "    os.write(out, struct.pack('<q', len(raw)) + raw)\n    return h, c"
    ),
    "forges the replies to come": (
        "import json, os, struct\nraw = b''\nfor number in range(1, 99):\n"
        "    one = json.dumps({'dict': [['number', number], ['got', True]]}).encode()\n"
        "    raw += struct.pack('<q', len(one)) + one\n"
        "for pipe in range(3, 9):\n    try:\n        os.write(pipe, raw)\n"
        f"    except OSError:\n        pass\n{WRONG}"
    ),
    "writes into every pipe": (
        "import os\nfor number in range(3, 30):\n    try:\n        os.write(number, b'passed' * 1000)\n"
        f"    except OSError:\n        pass\n{WRONG}"
    ),
    "closes every pipe": f"import os\nos.closerange(0, 99)\n{WRONG}",
    "takes the next question": (
        "import json, os, struct, sys\ndef lstm_cell(x, h, c, *rest):\n    frame = sys._getframe()\n"
        "    while frame and 'outbox' not in frame.f_locals:\n        frame = frame.f_back\n"
        "    number, out = frame.f_locals['message']['number'], frame.f_locals['outbox'].fileno()\n"
        "    for n in (number, number + 1):\n"
        "        raw = json.dumps({'dict': [['number', n], ['got', None]]}).encode()\n"
        "        os.write(out, struct.pack('<q', len(raw)) + raw)\n        os.read(frame.f_locals['inbox'].fileno(), 9)"
    ),
    "is no Python": "def lstm_cell(:\n",
    "is no text": "lstm_cell = '\\ud800'\n\0",
    "is nested deeply": f"lstm_cell = {'-' * 100_000}1",
    "is nested in brackets": f"lstm_cell = {'[' * 5000}{']' * 5000}",
    "is long": f"{WRONG}\nx = '{'x' * (9 * 2**20)}'",
}  # fmt: skip

# What must end the process in time, when it is given two seconds.
FORGE = """
import json, os, struct, sys, time

frame = sys._getframe()
while "outbox" not in frame.f_locals:
    frame = frame.f_back
OUTBOX = frame.f_locals["outbox"].fileno()


def framed(raw, length=None):
    raw = raw.replace(b'"number", 1]', b'"number", %d]' % frame.f_locals["message"]["number"])
    return struct.pack("<q", len(raw) if length is None else length) + raw


def forge(raw, length=None):
    os.write(OUTBOX, framed(raw, length))
"""
BREAKING = {
    "garbage": "os.write(OUTBOX, b'garbage' * 99)",
    "a length below zero": "forge(b'', -5)",
    "a length of nothing": "forge(b'', 0)",
    "a length of terabytes": "forge(b'{', 2**40)",
    "no message": "forge(b'[[[[')",
    "a deep message": "forge(b'[' * 10**6)",
    "a reply that is no dict": "forge(b'[1, 2]')",
    "no number": "forge(b'{\"dict\": [[\"got\", 1]]}')",
    "a number for another": "forge(b'{\"dict\": [[\"number\", 77], [\"got\", 1]]}')",
    "a number of tensors": (
        "forge(b'{\"dict\": [[\"number\", {\"tensor\": [\"uint8\", [2], \"AQE=\"]}], [\"got\", 1]]}')"
    ),
    "an error that is no text": (
        "forge(b'{\"dict\": [[\"number\", 1], [\"error\", {\"tensor\": [\"uint8\", [2], \"AQE=\"]}]]}')"
    ),
    "keys that are no text": "forge(b'{\"dict\": [[\"number\", 1], [1, 1]]}')",
    "two replies": (
        "one = b'{\"dict\": [[\"number\", 1], [\"got\", 1]]}'\n"
        "os.write(OUTBOX, 2 * framed(one))\ntime.sleep(9)"
    ),
    "a set of numbers that collide": (
        "forge(json.dumps({'dict': [['number', 1], ['got', {'set': [k * (2**61 - 1) for k in"
        " range(60000)]}]]}).encode())"
    ),
    "a message in drops": (
        "os.write(OUTBOX, struct.pack('<q', 2**22))\nwhile True:\n    os.write(OUTBOX, b' ')\n    time.sleep(0.03)"
    ),
    "memory in steps": (
        "kept = []\nwhile True:\n    try:\n        kept.append(bytearray(2**26))\n    except MemoryError:\n        pass"
    ),
    "memory of C": (
        "import ctypes\nlibc = ctypes.CDLL(None)\nlibc.malloc.restype = ctypes.c_void_p\nwhile True:\n"
        "    place = libc.malloc(2**26)\n    if place:\n        ctypes.memset(place, 1, 2**26)"
    ),
    "threads": (
        "import threading\nwhile True:\n    if threading.active_count() < 300:\n        try:\n"
        "            threading.Thread(target=time.sleep, args=(99,), daemon=True).start()\n"
        "        except RuntimeError:\n            pass"
    ),
    "many files": "for n in range(10**6):\n    open(str(n), 'w').close()",
    "many folders": "for n in range(10**6):\n    os.mkdir(str(n))",
    "large files": (
        "for n in range(30):\n    with open(str(n), 'wb') as file:\n        file.write(bytes(2**22))\ntime.sleep(9)"
    ),
    "files that are removed": (
        "kept = []\nfor n in range(30):\n    kept.append(open(str(n), 'wb', 0))\n    kept[-1].write(bytes(2**22))\n"
        "    os.remove(str(n))\ntime.sleep(9)"
    ),
    "folders too deep to be counted": (
        "import ctypes\nlibc = ctypes.CDLL(None)\nfor n in range(40):\n    libc.mkdir(b'd' * 200, 0o700)\n"
        "    libc.chdir(b'd' * 200)\ntime.sleep(9)"
    ),
    "a folder that nobody may read": "os.mkdir('closed', 0o300)\nopen('closed/a', 'w').close()\ntime.sleep(9)",
    "sleep": "time.sleep(99)",
    "a name of odd bytes": (
        "import ctypes\nctypes.CDLL(None).prctl(15, b'\\xff\\xfe\\x0c\\x1cThreads:')\ntime.sleep(99)"
    ),
    "a call of another architecture": (  # int 0x80: the 32-bit kernel's numbers
        "import ctypes, mmap, platform\n"
        "if platform.machine() == 'x86_64':\n"
        "    code = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, 7)\n"
        "    code.write(b'\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3')\n"
        "    ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()\n"
        "os._exit(0)"
    ),
}  # fmt: skip
