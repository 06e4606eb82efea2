"""When answers are due and what lateness costs: `policy.toml` in the course folder, and the arithmetic behind it.

All instants are in UTC. Days are days of the course's time zone: a day later is the same time by the clock on the wall,
although the day on which the clocks change has 23 or 25 hours.
"""

import dataclasses
import datetime
import difflib
import itertools
import tomllib
import zoneinfo
from pathlib import Path

FILE = "policy.toml"
TEMPLATE = """\
# When answers are due, and what lateness costs. `make release` wrote this file once; it is yours to change, and
# `make grades` reads it anew each time. Dates are written "2027-01-31 18:00"; without a time, the whole day counts.

# The time zone of the dates in this file, with its daylight saving, such as "Europe/Berlin" or "America/New_York".
timezone = "UTC"

# Minutes after a deadline that do not count: it moves every limit below.
grace_minutes = 10

# Every day begun counts as a late day: one second after the grace is one day late, 24 hours and a second are two.
# A day ends at the same time by the clock as the due date, even when the clocks change in between.

# Free late days of each student for the whole term. They are used automatically, in the order of the assignments'
# due dates. With 3, a student who hands in homework1 one day late, homework2 three days late and homework3 one day
# late uses 1 + 2 + 0, and is penalised for one day of homework2 and one of homework3. Points play no part, so later
# marks never change earlier ones. Work later than last_day uses none.
late_days = 0

# The fraction of the earned points lost for each late day that is not free: 0.1 is a tenth.
penalty_per_day = 0.0

# Work counts up to this many days after the due date, free days or not; anything later earns nothing.
# last_day = 7

# Due dates of assignments. They win over the one that `make release` was given.
[due]
# homework1 = "2027-01-31 18:00"

# One table for each student with other rules, named by the student's id in students.csv. extra_days and extra_hours
# move the due date of every assignment; a student's own due date for one assignment is used as given. Excused
# assignments are neither marked nor counted. An id with a dot or an @ is written in quotes:
# [students."ada@example.org"].
# [students.ada]
# extra_days = 2
# extra_hours = 12
# late_days = 5
# excused = ["homework2"]
# due = { homework1 = "2027-02-14" }
# When late work was handed in: Canvas and Moodle downloads hold no times, and work without a time counts as on time.
# handed_in = { homework1 = "2027-02-15 09:30" }
"""


@dataclasses.dataclass(frozen=True)
class Exceptions:
    """What holds for one student alone.

    Args:
        extra_days, extra_hours: by which every due date is later.
        late_days: free late days, or None for those of everybody.
        due: {assignment: instant}.
        handed_in: {assignment: instant}, where no file says when.
        excused: names of assignments.
    """

    extra_days: int = 0
    extra_hours: float = 0
    late_days: int | None = None
    due: dict = dataclasses.field(default_factory=dict)
    handed_in: dict = dataclasses.field(default_factory=dict)
    excused: tuple = ()


@dataclasses.dataclass(frozen=True)
class Policy:
    """What policy.toml says.

    Args:
        zone: the time zone.
        grace: timedelta that no deadline minds.
        late_days: free late days of each student.
        penalty_per_day: part of the points that a late day costs.
        last_day: days after the due date from which work earns nothing, or None.
        due: {assignment: instant}.
        students: {student: Exceptions}.
    """

    zone: datetime.tzinfo = datetime.UTC
    grace: datetime.timedelta = datetime.timedelta(0)
    late_days: int = 0
    penalty_per_day: float = 0.0
    last_day: int | None = None
    due: dict = dataclasses.field(default_factory=dict)
    students: dict = dataclasses.field(default_factory=dict)

    def student(self, name):
        """Return the Exceptions of a student."""
        return self.students.get(name, Exceptions())

    def due_for(self, student, assignment, otherwise, extension=None):
        """Return when an assignment is due for a student.

        Args:
            student: the id.
            assignment: its name.
            otherwise: the instant in the gradebook, or None.
            extension: timedelta that was granted in nbgrader, or None.

        Returns:
            The instant, or None if there is no due date.
        """
        own = self.student(student)
        common = self.due.get(assignment, otherwise)
        if assignment in own.due or common is None:
            return own.due.get(assignment)
        hours = datetime.timedelta(hours=own.extra_hours) + (extension or datetime.timedelta(0))
        return later(common, own.extra_days, self.zone) + hours

    def days_late(self, handed_in, due):
        """Return how many days late something is: days that have begun after the due date and the grace.

        Example:
            >>> policy, due = Policy(grace=datetime.timedelta(minutes=10)), instant("2027-01-31 18:00")
            >>> [policy.days_late(instant(text), due)
            ...  for text in ("2027-01-31 18:10", "2027-01-31 18:10:01", "2027-02-01 18:10", "2027-02-01 18:10:01")]
            [0, 1, 1, 2]
        """
        when = handed_in.replace(microsecond=0) - self.grace
        least = max(0, (when - due).days - 1)  # a day may have 25 hours
        return next(days for days in itertools.count(least) if when <= later(due, days, self.zone))


def later(when, days, zone):
    """Return the instant so many days later by the clock on the wall.

    Example:
        >>> berlin = zoneinfo.ZoneInfo("Europe/Berlin")
        >>> str(later(instant("2027-03-27 18:00", berlin), 1, berlin))
        '2027-03-28 16:00:00+00:00'
    """
    if not days:
        return when
    wall = when.astimezone(zone).replace(tzinfo=None) + datetime.timedelta(days=days)
    return _from_wall(wall, zone)


def _from_wall(wall, zone):
    """The instant at which the clocks of a zone show a time; the later one where they show it twice or skip it."""
    return max(wall.replace(tzinfo=zone, fold=fold).astimezone(datetime.UTC) for fold in (0, 1))


def instant(value, zone=datetime.UTC):
    """Return the instant that a date means.

    Args:
        value: text such as "2027-01-31", "2027-01-31 18:00" or "2027-01-31T18:00:00+01:00", or TOML's own date.
        zone: of a date that does not name its own.

    Raises:
        ValueError: if it is no date, or not in the years 2000 to 2100.

    Example:
        >>> str(instant("2027-01-31"))
        '2027-01-31 23:59:59+00:00'
    """
    try:
        text = value if isinstance(value, str) else value.isoformat()
        when = datetime.datetime.fromisoformat(text.strip().removesuffix(" UTC"))
    except (AttributeError, ValueError):
        raise ValueError(f'got {value!r}; a date is written "2027-01-31 18:00" or "2027-01-31"') from None
    if not 2000 <= when.year <= 2100:
        raise ValueError(f"got {value!r}; wanted a date in the years 2000 to 2100")
    if text.strip().endswith(" UTC"):
        when = when.replace(tzinfo=datetime.UTC)
    if len(text.strip()) <= len("2027-01-31"):
        when = when.replace(hour=23, minute=59, second=59)
    return when.astimezone(datetime.UTC) if when.tzinfo else _from_wall(when, zone)


def free_days(late, allowed):
    """Share out a student's free late days.

    Args:
        late: {assignment: days late}, in the order of the due dates.
        allowed: free days of the whole term.

    Returns:
        {assignment: free days used}.

    Example:
        >>> free_days({"homework1": 1, "homework2": 3, "homework3": 1}, 3)
        {'homework1': 1, 'homework2': 2, 'homework3': 0}
    """
    used = {}
    for assignment, days in late.items():
        used[assignment] = min(days, allowed - sum(used.values()))
    return used


def write_policy(course):
    """Write policy.toml into a course folder that has none."""
    path = Path(course) / FILE
    if not path.exists():
        path.write_text(TEMPLATE, encoding="utf8")


def read_policy(path):
    """Return the Policy that a file says.

    Raises:
        ValueError: if it cannot be read, or says something that is not known; the message names the line or the key.
    """
    try:
        said = tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{path}: {error}") from None
    try:
        return _policy(said)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _policy(said):
    _known(said, "", ["timezone", "grace_minutes", "late_days", "penalty_per_day", "last_day", "due", "students"])
    zone = _zone(said.get("timezone", "UTC"))
    students = _table(said, "students", "")
    return Policy(
        zone,
        datetime.timedelta(minutes=_number(said, "grace_minutes", "", 0, 10_000)),
        _number(said, "late_days", "", 0, 1000, whole=True),
        _number(said, "penalty_per_day", "", 0, 1),
        _number(said, "last_day", "", 0, 1000, whole=True, otherwise=None),
        _dates(said, "due", "", zone),
        {name: _exceptions(_table(students, name, "students."), f"students.{name}.", zone) for name in students},
    )


def _exceptions(said, where, zone):
    _known(said, where, [field.name for field in dataclasses.fields(Exceptions)])
    excused = said.get("excused", [])
    if not isinstance(excused, list) or not all(isinstance(name, str) for name in excused):
        raise ValueError(f'{where}excused: got {excused!r}; wanted a list of assignments, such as ["homework1"]')
    return Exceptions(
        _number(said, "extra_days", where, 0, 1000, whole=True),
        _number(said, "extra_hours", where, 0, 10_000),
        _number(said, "late_days", where, 0, 1000, whole=True, otherwise=None),
        _dates(said, "due", where, zone),
        _dates(said, "handed_in", where, zone),
        tuple(excused),
    )


def _known(said, where, keys):
    for key in said:
        if key not in keys:
            raise ValueError(f"{where}{key}: there is no such key{_like(key, keys)}; wanted one of {', '.join(keys)}")


def _like(word, words):
    close = difflib.get_close_matches(word, words, 1)
    return f" (did you mean {close[0]}?)" if close else ""


def _table(said, key, where):
    table = said.get(key, {})
    if not isinstance(table, dict):
        raise ValueError(f"{where}{key}: got {table!r}; wanted a table, [{where}{key}]")
    return table


def _number(said, key, where, least, most, whole=False, otherwise=0):
    value = said.get(key, otherwise)
    if value is otherwise:
        return value
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)) or not least <= value <= most:
        kind = "whole number" if whole else "number"
        raise ValueError(f"{where}{key}: got {value!r}; wanted a {kind} from {least} to {most}")
    return value


def _dates(said, key, where, zone):
    found = {}
    for name, value in _table(said, key, where).items():
        try:
            found[name] = instant(value, zone)
        except ValueError as error:
            raise ValueError(f"{where}{key}.{name}: {error}") from None
    return found


def _zone(name):
    if name == "UTC":
        return datetime.UTC
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, TypeError, AttributeError, OSError):
        raise ValueError(
            f'timezone: got {name!r}, which this machine does not know; wanted a name such as "Europe/Berlin" or "UTC"'
        ) from None


def check_names(policy, assignments, students):
    """Refuse a policy that names what does not exist.

    Args:
        policy: a Policy.
        assignments: names of those that exist.
        students: ids of those that exist.

    Raises:
        ValueError: naming the key and the nearest name that exists.
    """
    _exist(policy.due, "due.", assignments, "assignment")
    _exist(policy.students, "students.", students, "student")
    for name, own in policy.students.items():
        _exist(own.due, f"students.{name}.due.", assignments, "assignment")
        _exist(own.handed_in, f"students.{name}.handed_in.", assignments, "assignment")
        _exist(own.excused, f"students.{name}.excused: ", assignments, "assignment")


def _exist(names, where, known, kind):
    for name in names:
        if name not in known:
            raise ValueError(f"{FILE}: {where}{name}: there is no such {kind}{_like(name, list(known))}; "
                             f"there are {', '.join(sorted(known)) or 'none'}")  # fmt: skip
