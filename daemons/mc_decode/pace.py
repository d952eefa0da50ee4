"""How fast this instance makes tokens, as its latest steps took: what the Conductor predicts by."""

from collections.abc import Sequence

from daemons.engine.cost_fit import StepFit
from daemons.mc_decode.request import Stepped

_STEP_DECAY = 0.9


class Pace:
    """The time of one token is told: a step's, shared by those that drafts bring."""

    def __init__(self) -> None:
        self.step_s = 0.0
        """Of one token; 0 until the first step."""
        self._tokens_a_step = 1.0
        self._fit = StepFit()

    def observe(self, steps: Sequence[Stepped], elapsed_s: float) -> None:
        """One step of at least one request."""
        tokens_a_step = sum(1 + step.num_right for step in steps) / len(steps)
        self._tokens_a_step += (1 - _STEP_DECAY) * (tokens_a_step - self._tokens_a_step)
        token_s = elapsed_s / self._tokens_a_step
        self.step_s = (
            _STEP_DECAY * self.step_s + (1 - _STEP_DECAY) * token_s if self.step_s else token_s
        )
        context = sum(s.request.num_prompt_tokens + len(s.request.tokens) for s in steps)
        self._fit.observe(len(steps), context, token_s)

    def coefficients(self) -> tuple[float, float, float]:
        """Seconds of a token: fixed, for each sequence of the batch, for each token of their contexts."""
        return self._fit.coefficients()
