"""Measures of a prediction for each component of the next observation, and for real rewards."""

from math import sqrt

from pydantic import BaseModel, computed_field

MAX_EXCESS = 0.1
"""A program is at the noise floor up to this share above the noise level: the estimate of the
level from 2,000 rows is about as uncertain. With few rows, three standard errors are allowed."""


class ComponentScore(BaseModel, frozen=True):
    """How well a program predicts a component in one step, without the ends of episodes.

    Errors are in units of the component. Values that do not apply are None.

    Attributes:
        name: Documented name of the component.
        number: Position in the observation; the size of the observation for rewards.
        rows: Number of compared rows.
        rmse: Root mean square error; None for labels and for predictions that are not finite.
        r2: 1 - squared error / squared deviation from the mean (R squared).
        explained: 1 - squared error / squared change: 0 for "nothing changes", 1 if exact. For
            rewards, the mean replaces the previous value. For labels it is the share of wrong
            values that the program corrects, compared with the better of "nothing changes" and
            the most common label.
        right: Share of exactly right values; None for real numbers.
        exact: Whether all values are right within the tolerance.
        outliers: Number of errors far beyond all others, if they are at most 1 % of the rows.
        typical: Root mean square error without outliers; None without outliers.
        noise: Noise level that the program can reach: an error like `rmse`, for labels the
            share of wrong values; None if unknown. White errors below the estimated level are a
            better estimate and replace it.
        filtered: Lower noise level that a program with memory can reach; None if `noise` is it.
        is_sensor: Whether earlier rows lower the noise, which is the sign of a sensor's noise.
        unit: Rounding unit of the recorded values, 0 if they are not rounded.
        is_white: Whether the errors depend on nothing that the program sees.
        depends_on: What the errors depend on, the strongest first.
        p_value: Smallest p-value of a dependence, corrected for the number of tests.
    """

    name: str
    number: int | None = None
    rows: int
    rmse: float | None = None
    r2: float | None = None
    explained: float | None = None
    right: float | None = None
    exact: bool = False
    outliers: int = 0
    typical: float | None = None
    noise: float | None = None
    filtered: float | None = None
    is_sensor: bool = False
    unit: float = 0.0
    is_white: bool = True
    depends_on: tuple[str, ...] = ()
    p_value: float = 1.0

    @property
    def is_label(self) -> bool:
        """Whether the values have no order, so that only equal values count."""
        return self.right is not None and self.rmse is None

    @property
    def error(self) -> float | None:
        """The error in the unit of `noise`: the share of wrong labels, else the RMSE."""
        return 1 - self.right if self.is_label and self.right is not None else self.rmse

    @property
    def is_rounding(self) -> bool:
        """Whether rounding of the recorded values explains the errors.

        Rounding gives a uniform error with deviation 0.29 units, both in the recorded value and
        in the observation that it is predicted from: together 0.41 units if a law keeps
        differences, and more if it magnifies them.
        """
        return self.rmse is not None and 0 < self.unit < 1 and self.rmse <= 0.6 * self.unit

    @property
    def is_at_floor(self) -> bool:
        """Whether the error is at the noise level, up to its uncertainty."""
        if self.exact or self.is_rounding:
            return True
        if self.error is None or self.noise is None:
            return False
        if self.is_label:
            spread = sqrt(self.error * (1 - self.error) / self.rows)
            return self.error <= (1 + MAX_EXCESS) * self.noise + 3 * spread
        # The relative standard error of a standard deviation is 1 / sqrt(2 rows).
        return self.error <= (1 + max(MAX_EXCESS, 3 / sqrt(2 * self.rows))) * self.noise

    @computed_field  # type: ignore[prop-decorator]  # a property, also in JSON
    @property
    def is_explained(self) -> bool:
        """Whether the program explains the component except for noise."""
        return self.exact or (self.is_at_floor and (self.is_white or self.is_rounding))

    @property
    def is_complete(self) -> bool:
        """Whether no program, also with memory, is expected to predict the component better."""
        return self.is_explained and self.filtered is None
