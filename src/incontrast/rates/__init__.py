"""Learning rates: fixed, cosine, learned."""

from incontrast.rates.base import RatePlan, Rates, RatesState
from incontrast.rates.learned import Learned
from incontrast.rates.schedules import Cosine, Fixed

__all__ = ["Cosine", "Fixed", "Learned", "RatePlan", "Rates", "RatesState"]
