"""What `show_source` leaves out, and what it does not."""

from course_lib.notebook.display import source


class Checked:
    """Has one method with checks of every kind."""

    width = 3

    def half(self, x):
        """Half of it."""
        self.check_all(x)
        if x < 0:
            raise ValueError(f"x must not be negative, got {x}")
        if x > 9:
            check_size(x)
            if x > 99:
                raise ValueError
        for other in (x, x):
            check_size(other)
        y = check_size(x)  # what a check returns is needed
        if y > 5:
            y = 5
        else:
            raise ValueError
        return y / 2

    def check_all(self, x):
        """Only a docstring and a check."""
        check_size(x)


def check_size(x):
    """Nothing."""
    return x


# fmt: off
SHOWN = '''\
class Checked:
    width = 3

    def half(self, x):
        y = check_size(x)  # what a check returns is needed
        if y > 5:
            y = 5
        else:
            raise ValueError
        return y / 2

    def check_all(self, x):
        """Only a docstring and a check."""
        check_size(x)'''
# fmt: on


def test_source_leaves_docstrings_and_checks_out():
    """Fails if a check stays, a line that does something goes, or what is left is no Python."""
    assert source(Checked) == SHOWN
    compile(source(Checked), "shown", "exec")
