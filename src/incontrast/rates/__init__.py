"""Learning rates: fixed, cosine."""

from incontrast.rates.base import RatePlan, Rates
from incontrast.rates.schedules import Cosine, Fixed

__all__ = ["Cosine", "Fixed", "RatePlan", "Rates"]
