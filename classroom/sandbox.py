"""Confinement: what a process in which a student's code runs may do, and how much of everything it may use.

On Linux the kernel sees to it, whatever the code does: Landlock (which files), a seccomp filter (which calls to the
kernel), resource limits. Python's audit hook, which a determined attacker passes by, is a second lock there, and the
only one elsewhere.
"""

import contextlib
import ctypes
import errno
import os
import platform
import resource
import sys
from pathlib import Path

MEMORY = 4 * 2**30  # bytes that the process may write to
ADDRESSES = 24 * 2**30  # bytes of addresses: libraries for a GPU map many
FILE_BYTES = 16 * 2**20  # of one file
OPEN_FILES = 256
THREADS = 64  # more than there are when it starts
FORBIDDEN = (
    "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "os.kill",
    "os.killpg", "os.chmod", "os.chown", "os.utime", "os.setxattr", "os.removexattr", "os.link", "os.symlink",
    "os.truncate", "resource.prlimit", "resource.setrlimit", "socket.connect", "socket.bind", "socket.sendto",
    "socket.sendmsg", "socket.getaddrinfo", "pty.spawn",
)  # fmt: skip
WITH_PATHS = ("open", "os.listdir", "os.scandir", "os.remove", "os.rename", "os.mkdir", "os.rmdir")

# Calls to the kernel that no right answer makes. A name that one kind of processor lacks is not in its list.
DENIED = {
    "x86_64": {
        "socket": 41, "connect": 42, "accept": 43, "sendto": 44, "sendmsg": 46, "bind": 49, "listen": 50, "shmget": 29,
        "shmat": 30, "shmctl": 31, "semget": 64, "semop": 65, "semctl": 66, "msgget": 68, "msgsnd": 69, "msgrcv": 70,
        "msgctl": 71, "fork": 57, "vfork": 58, "execve": 59, "truncate": 76, "link": 86,
        "symlink": 88, "chmod": 90, "fchmod": 91, "chown": 92, "fchown": 93, "lchown": 94, "ptrace": 101, "syslog": 103,
        "setuid": 105, "setgid": 106, "setpgid": 109, "setsid": 112, "setreuid": 113, "setregid": 114, "setgroups": 116,
        "setresuid": 117, "setresgid": 119, "rt_sigqueueinfo": 129, "utime": 132, "mknod": 133, "personality": 135,
        "setpriority": 141, "sched_setparam": 142, "sched_setscheduler": 144, "vhangup": 153, "pivot_root": 155,
        "adjtimex": 159, "chroot": 161, "acct": 163, "settimeofday": 164, "mount": 165, "umount2": 166, "swapon": 167,
        "swapoff": 168, "reboot": 169, "sethostname": 170, "setdomainname": 171, "iopl": 172, "ioperm": 173,
        "init_module": 175, "delete_module": 176, "quotactl": 179, "setxattr": 188, "lsetxattr": 189, "fsetxattr": 190,
        "removexattr": 197, "lremovexattr": 198, "fremovexattr": 199, "tkill": 200, "sched_setaffinity": 203,
        "timer_create": 222, "utimes": 235, "mq_open": 240, "mq_unlink": 241, "mq_timedsend": 242, "kexec_load": 246,
        "add_key": 248, "request_key": 249, "keyctl": 250, "ioprio_set": 251, "inotify_init": 253,
        "inotify_add_watch": 254, "migrate_pages": 256, "mknodat": 259, "fchownat": 260,
        "futimesat": 261, "linkat": 265, "symlinkat": 266, "fchmodat": 268, "unshare": 272,
        "move_pages": 279, "utimensat": 280, "accept4": 288, "inotify_init1": 294, "rt_tgsigqueueinfo": 297,
        "perf_event_open": 298, "fanotify_init": 300, "fanotify_mark": 301, "name_to_handle_at": 303,
        "open_by_handle_at": 304, "clock_adjtime": 305, "sendmmsg": 307, "setns": 308, "process_vm_readv": 310,
        "process_vm_writev": 311, "kcmp": 312, "finit_module": 313, "sched_setattr": 314,
        "memfd_create": 319, "kexec_file_load": 320, "bpf": 321, "execveat": 322, "userfaultfd": 323,
        "clock_settime": 227, "semtimedop": 220, "io_setup": 206,
        "setrlimit": 160, "rename": 82, "renameat": 264, "renameat2": 316,
        "fallocate": 285,
    },
    "aarch64": {
        "setxattr": 5, "lsetxattr": 6, "fsetxattr": 7, "removexattr": 14, "lremovexattr": 15, "fremovexattr": 16,
        "inotify_init1": 26, "inotify_add_watch": 27, "ioprio_set": 30, "mknodat": 33, "symlinkat": 36,
        "linkat": 37, "umount2": 39, "mount": 40, "pivot_root": 41, "truncate": 45, "chroot": 51,
        "fchmod": 52, "fchmodat": 53, "fchownat": 54, "fchown": 55, "vhangup": 58, "quotactl": 60, "utimensat": 88,
        "acct": 89, "personality": 92, "unshare": 97, "kexec_load": 104, "init_module": 105, "delete_module": 106,
        "timer_create": 107, "clock_settime": 112, "syslog": 116, "ptrace": 117, "sched_setparam": 118,
        "sched_setscheduler": 119, "sched_setaffinity": 122, "tkill": 130, "rt_sigqueueinfo": 138, "setpriority": 140,
        "reboot": 142, "setregid": 143, "setgid": 144, "setreuid": 145, "setuid": 146, "setresuid": 147,
        "setresgid": 149, "setpgid": 154, "setsid": 157, "setgroups": 159, "sethostname": 161, "setdomainname": 162,
        "settimeofday": 170, "adjtimex": 171, "mq_open": 180, "mq_unlink": 181, "mq_timedsend": 182, "msgget": 186,
        "msgctl": 187, "msgrcv": 188, "msgsnd": 189, "semget": 190, "semctl": 191, "semop": 193, "shmget": 194,
        "shmctl": 195, "shmat": 196, "socket": 198, "bind": 200, "listen": 201, "accept": 202, "connect": 203,
        "sendto": 206, "sendmsg": 211, "add_key": 217, "request_key": 218, "keyctl": 219, "execve": 221, "swapon": 224,
        "swapoff": 225, "migrate_pages": 238, "move_pages": 239, "rt_tgsigqueueinfo": 240, "perf_event_open": 241,
        "accept4": 242, "fanotify_init": 262, "fanotify_mark": 263, "name_to_handle_at": 264, "open_by_handle_at": 265,
        "clock_adjtime": 266, "setns": 268, "sendmmsg": 269, "process_vm_readv": 270, "process_vm_writev": 271,
        "kcmp": 272, "finit_module": 273, "sched_setattr": 274, "memfd_create": 279, "bpf": 280,
        "execveat": 281, "userfaultfd": 282, "kexec_file_load": 294, "semtimedop": 192, "io_setup": 0,
        "setrlimit": 164, "renameat": 38,
        "renameat2": 276, "fallocate": 47,
    },
}  # fmt: skip
# Calls that do nothing and say that they did: a file that is removed while it is open would use the disk unseen.
PRETENDED = {"x86_64": {"rmdir": 84, "unlink": 87, "unlinkat": 263}, "aarch64": {"unlinkat": 35}}
# Calls that are allowed with some arguments. Signals: to itself only.
SIGNALS = {"x86_64": {"kill": 62, "tgkill": 234}, "aarch64": {"kill": 129, "tgkill": 131}}
CLONE = {"x86_64": 56, "aarch64": 220}  # for threads, not for processes
PRLIMIT = {"x86_64": 302, "aarch64": 261}  # to read limits
# {call: (number, which argument, values refused)}: of prctl, what ties a process to its parent and what hides it; of
# fcntl, what makes the kernel send signals to others, and leases.
VALUES = {
    "x86_64": {"prctl": (157, 0, (1, 4)), "fcntl": (72, 1, (8, 10, 15, 1024, 1026))},
    "aarch64": {"prctl": (167, 0, (1, 4)), "fcntl": (25, 1, (8, 10, 15, 1024, 1026))},
}  # fmt: skip
# Of ioctl, all that is allowed: what a terminal is asked, what may be read, and what happens to a descriptor. Others
# change attributes of files that may only be read, or freeze a whole disk.
IOCTL, HARMLESS = {"x86_64": 16, "aarch64": 29}, (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
# {call: (number, which argument, ((bits, value refused), ...))}: of open, files without a name (0x400000) and
# truncating what is not opened for writing, which Landlock does not see before Linux 6.2; of mmap, memory that is
# shared: it can be used without being counted.
TRUNCATING, NAMELESS, SHARED = ((0x203, 0x200), (0x203, 0x203)), (0x400000, 0x400000), (0x21, 0x21)
BITS = {
    "x86_64": {"open": (2, 1, (*TRUNCATING, NAMELESS)), "openat": (257, 2, (*TRUNCATING, NAMELESS)),
               "mmap": (9, 3, (SHARED,))},
    "aarch64": {"openat": (56, 2, (*TRUNCATING, NAMELESS)), "mmap": (222, 3, (SHARED,))},
}  # fmt: skip
SECCOMP = {"x86_64": 317, "aarch64": 277}
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
NEWER = 424  # from here on the numbers are the same everywhere; of these calls all are refused
CLONE_THREAD, PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 0x10000, 1, 38

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

# The filter's small language (linux/filter.h, linux/seccomp.h).
LOAD, EQUAL, AT_LEAST, ANY_BIT, AND, RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
ALLOW, REFUSE, UNKNOWN, KILL = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS, 0x80000000
PRETEND = 0x00050000  # no error
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data


def confine(folder, hole=None):
    """Confine this process for good: it may read Python and the library, write files into its folder, and compute.

    Args:
        folder: its own.
        hole: a file or folder that it may not read, though it lies in what may be read; or None.

    Returns:
        list of str: what the kernel enforces, of "landlock" and "seccomp".
    """
    readable = [place for tree in readable_trees() for place in around(tree, hole and Path(hole).resolve())]
    limit_resources()
    by_kernel = [name for name, lock in (("landlock", lambda: forbid_files(readable, folder)),
                                         ("seccomp", forbid_calls)) if lock()]  # fmt: skip
    sys.addaudithook(hook(readable, Path(folder).resolve()))
    return by_kernel


def readable_trees():
    """Return the folders of Python, its libraries and the course's."""
    import course_lib

    library = Path(course_lib.__file__).resolve().parent
    trees = [sys.prefix, sys.base_prefix, library, library.parent / "results", "/usr", "/lib", "/lib64", "/etc/ssl",
             "/proc/cpuinfo", "/sys/devices/system/cpu"]  # fmt: skip
    return [Path(tree).resolve() for tree in trees if Path(tree).exists()]


def around(tree, hole):
    """Return the paths that together are a tree without the hole in it.

    Example:
        >>> here = Path(__file__).resolve()
        >>> here in around(here.parent, here), here.with_name("worker.py") in around(here.parent, here)
        (False, True)
    """
    if hole is None or not hole.is_relative_to(tree):
        return [tree]
    if hole == tree:
        return []
    # Links would lead around the hole.
    return [place for child in sorted(tree.iterdir()) if not child.is_symlink() for place in around(child, hole)]


def limit_resources():
    """Limit memory, the size of files, open files and threads."""
    limits = [(resource.RLIMIT_DATA, MEMORY), (resource.RLIMIT_AS, ADDRESSES), (resource.RLIMIT_FSIZE, FILE_BYTES),
              (resource.RLIMIT_NOFILE, OPEN_FILES), (resource.RLIMIT_CORE, 0)]  # fmt: skip
    with contextlib.suppress(OSError):
        limits.append((resource.RLIMIT_NPROC, threads_of_user() + THREADS))
    for limit, amount in limits:
        with contextlib.suppress(ValueError, OSError):  # not every system has each, and some are lower already
            resource.setrlimit(limit, (amount, amount))


def threads_of_user():
    """Count the threads of all processes of this user, which the kernel's limit counts as well."""
    count = 0
    for entry in os.scandir("/proc"):
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and entry.stat().st_uid == os.getuid():
                count += len(os.listdir(f"/proc/{entry.name}/task"))
    return count


def forbid_files(readable, folder):
    """Let Landlock forbid all files but these; say whether the kernel does so."""
    try:
        from landlock import FSAccess, Ruleset

        rules = Ruleset()
    except (ImportError, OSError):
        return False
    read = FSAccess.READ_FILE | FSAccess.READ_DIR
    for place in readable:
        rules.allow(place, rules=read if place.is_dir() else FSAccess.READ_FILE)
        # To import from a package, Python must list its folder.
        rules.allow(*filter(is_package, place.parents), rules=FSAccess.READ_DIR)
    own = read | FSAccess.WRITE_FILE | FSAccess.TRUNCATE | FSAccess.MAKE_REG | FSAccess.MAKE_DIR
    own |= FSAccess.REMOVE_FILE | FSAccess.REMOVE_DIR
    rules.allow(folder, rules=own & rules.restrict_rules)
    rules.allow("/dev/null", "/dev/urandom", rules=FSAccess.READ_FILE | FSAccess.WRITE_FILE)
    rules.apply()
    return True


def is_package(folder):
    """Say whether a folder is a package of Python's."""
    return (folder / "__init__.py").exists()


def forbid_calls():
    """Let the kernel refuse the calls that no right answer makes; say whether it does so."""
    machine = platform.machine()
    if not sys.platform.startswith("linux") or machine not in AUDIT_ARCH:
        return False
    steps = call_filter(machine, os.getpid())
    program = (ctypes.c_uint64 * len(steps))(*steps)

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_void_p))

    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    given = Program(len(steps), ctypes.addressof(program))
    every_thread, set_filter = 1, 1
    return libc.syscall(SECCOMP[machine], set_filter, every_thread, ctypes.byref(given)) == 0


def call_filter(machine, own):
    """Return the filter as the kernel reads it: one number of 64 bits a step.

    Args:
        machine: "x86_64" or "aarch64".
        own: the number of the process.
    """

    def step(code, value, yes=0, no=0):
        return code | yes << 16 | no << 24 | value << 32

    def check(number, *tests):
        """Steps that are passed over unless the call has this number."""
        return [step(EQUAL, number, 0, len(tests)), *tests]

    def answer(what):
        return step(RETURN, what)

    steps = [step(LOAD, ARCHITECTURE), step(EQUAL, AUDIT_ARCH[machine], 1, 0), answer(KILL), step(LOAD, NUMBER),
             step(AT_LEAST, NEWER, 0, 1), answer(UNKNOWN)]  # fmt: skip
    for number in sorted(DENIED[machine].values()):
        steps += check(number, answer(REFUSE))
    for number in PRETENDED[machine].values():
        steps += check(number, answer(PRETEND))
    for number in SIGNALS[machine].values():
        steps += check(number, step(LOAD, ARGUMENTS), step(EQUAL, own, 2, 0), step(EQUAL, 0, 1, 0), answer(REFUSE),
                       answer(ALLOW))  # fmt: skip
    steps += check(CLONE[machine], step(LOAD, ARGUMENTS), step(ANY_BIT, CLONE_THREAD, 1, 0), answer(REFUSE),
                   answer(ALLOW))  # fmt: skip
    low, high = ARGUMENTS + 16, ARGUMENTS + 20  # of the address of new limits
    steps += check(PRLIMIT[machine], step(LOAD, low), step(EQUAL, 0, 0, 2), step(LOAD, high), step(EQUAL, 0, 1, 0),
                   answer(REFUSE), answer(ALLOW))  # fmt: skip
    for number, position, refused in VALUES[machine].values():
        compare = [step(EQUAL, value, len(refused) - n, 0) for n, value in enumerate(refused)]
        steps += check(number, step(LOAD, ARGUMENTS + 8 * position), *compare, answer(ALLOW), answer(REFUSE))
    compare = [step(EQUAL, value, len(HARMLESS) - n, 0) for n, value in enumerate(HARMLESS)]
    steps += check(IOCTL[machine], step(LOAD, ARGUMENTS + 8), *compare, answer(REFUSE), answer(ALLOW))
    for number, position, refused in BITS[machine].values():
        tests = []
        for bits, value in refused:
            tests += [step(LOAD, ARGUMENTS + 8 * position), step(AND, bits), step(EQUAL, value, 0, 1), answer(REFUSE)]
        steps += check(number, *tests, answer(ALLOW))
    return [*steps, answer(ALLOW)]


def end_with_parent():
    """Let the kernel end this process when the one that started it ends (Linux)."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 9, 0, 0, 0)


def hook(readable, folder):
    """Return an audit hook that refuses what an answer has no use for."""
    packages = {parent for place in readable for parent in place.parents if is_package(parent)}  # may be listed

    def refuse(event, arguments):
        if event in FORBIDDEN:
            raise PermissionError(f"{event} is not for an answer that is graded")
        if event not in WITH_PATHS:
            return
        writes = event not in ("open", "os.listdir", "os.scandir") or (event == "open" and arguments[2] & WRITING)
        places = [folder, Path("/dev"), *([] if writes else readable)]
        for given in arguments[:2] if event == "os.rename" else arguments[:1]:
            if isinstance(given, (str, bytes)):
                path = Path(os.path.realpath(os.fsdecode(given)))
                listed = event in ("os.listdir", "os.scandir") and path in packages
                if not listed and not any(path.is_relative_to(place) for place in places):
                    raise PermissionError(f"an answer that is graded may not open {path.name}")

    return refuse
