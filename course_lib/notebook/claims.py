"""Claims and guesses: what a run shows is said by a sentence that the run itself has checked, or asked for first."""

from course_lib.notebook.display import markdown, number
from course_lib.notebook.names import display_name


def claim(text, holds, **measured):
    """Say a sentence about a run, and whether the run bears it out: one line, with the measured numbers in small type.

    A tick stands before what holds, a cross before what does not, with your settings. Nothing is raised: a claim that
    fails is a result. Tests compare the sentence and not the numbers, which may differ from machine to machine.

    Args:
        text: the claim, a sentence; Markdown and $formulas$ work.
        holds: bool, or a tensor with one boolean element.
        **measured: the numbers behind it, each under its name; a string may bring a unit, as in time=f"{t:.1f} s".

    >>> claim("Shuffling raises the loss.", 2.0 < 3.0, loss_before=2.0, after=3.14159)
    ✓ Shuffling raises the loss. <small>loss before 2 · after 3.14</small>
    """
    if hasattr(holds, "item"):
        holds = holds.item()
    if not isinstance(holds, bool):
        raise TypeError(f"holds is {holds!r}, a {type(holds).__name__}; wanted a truth value, such as a < b")
    numbers = " · ".join(f"{display_name(name)} {in_words(value)}" for name, value in measured.items())
    markdown(
        f"{'✓' if holds else '✗ Not with these settings:'} {text}" + (f" <small>{numbers}</small>" if numbers else "")
    )


def predict(question, guess):
    """Ask for a guess before the result is shown, and keep it: `compare` shows the two side by side.

    Args:
        question: what is to be guessed, with its unit.
        guess: a number or a word; three dots: none yet.

    >>> guess = predict("the RNN's accuracy, from 0 to 1", 0.5)
    Your guess of the RNN's accuracy, from 0 to 1: **0.5**. Run on.
    >>> guess.compare(0.18)
    *The RNN's accuracy, from 0 to 1:*
    you guessed **0.5**; measured: <b>0.18</b>.
    """
    return Guess(question, guess)


class Guess:
    """What a reader expects of a run that has not been shown yet."""

    def __init__(self, question, guess):
        self.question, self.guess = question, guess
        if guess is ...:
            markdown(f"No guess yet of {question}: put one in place of the three dots, run this cell, and go on.")
        else:
            markdown(f"Your guess of {question}: **{in_words(guess)}**. Run on.")

    def compare(self, measured):
        """Show the guess beside what was measured, a number or words, below the question.

        The question stands on a line of its own: JupyterLab shows the first line of an output that is still closed.
        """
        question = self.question[0].upper() + self.question[1:]
        guess = "you made no guess" if self.guess is ... else f"you guessed **{in_words(self.guess)}**"
        markdown(f"*{question}:*\n{guess}; measured: <b>{in_words(measured)}</b>.")


def in_words(value):
    """A number, a tensor or a list of numbers for a reader; words as they are.

    >>> in_words([0.12345, 70e9, "ja"])
    '0.123, 70,000,000,000, ja'
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return ", ".join(in_words(part) for part in value)
    return number(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
