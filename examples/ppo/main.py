"""Reinforcement learning: balance the pole of Gymnasium's CartPole by proximal policy optimization.

Run with ``python examples/ppo/main.py``; it needs Gymnasium, ``pip install 'backburn[gymnasium]'``. After Schulman et
al., "Proximal policy optimization algorithms" (2017), with generalized advantage estimation (Schulman et al., 2016).
The loop is written by hand: eight environments run for 128 steps, then the policy is updated from these steps.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean

import gymnasium
import numpy as np

import backburn as bb
from backburn import data, nn, optim

HERE = Path(__file__).parent
Batch = dict[str, np.ndarray]
ENVIRONMENTS, STEPS = 8, 128
DISCOUNT, LAMBDA = 0.99, 0.95
CLIP, ENTROPY, VALUE = 0.2, 0.01, 0.5


class ActorCritic(nn.Module):
    """The policy, and the value of a state: the expected discounted sum of rewards."""

    def __init__(self, observations: int, actions: int, width: int = 64) -> None:
        def network(outputs: int) -> nn.Sequential:
            hidden = nn.Linear(observations, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()
            return nn.Sequential(*hidden, nn.Linear(width, outputs))

        self.actor, self.critic = network(actions), network(1)

    def forward(self, states: bb.Tensor) -> tuple[bb.Tensor, bb.Tensor]:
        """Log probabilities (n, actions) and values (n,) of states (n, observations)."""
        return bb.log_softmax(self.actor(states), axis=1), self.critic(states)[:, 0]


def log_probability(log_policy: bb.Tensor, actions: bb.Tensor) -> bb.Tensor:
    """The log probabilities (n,) of the actions taken."""
    return bb.take_along_axis(log_policy, actions[:, None], axis=1)[:, 0]


def loss(model: ActorCritic, batch: Mapping[str, bb.Tensor]) -> bb.FloatTensor:
    """The clipped objective of the policy, the squared error of the values, and a bonus for entropy."""
    log_policy, values = model(batch["states"])
    ratio = bb.exp(log_probability(log_policy, batch["actions"]) - batch["log_probabilities"])
    advantages = (batch["advantages"] - batch["advantages"].mean()) / (batch["advantages"].std() + 1e-8)
    objective = bb.minimum(ratio * advantages, bb.clip(ratio, 1.0 - CLIP, 1.0 + CLIP) * advantages).mean()
    entropy = -(bb.exp(log_policy) * log_policy).sum(axis=1).mean()
    return VALUE * ((values - batch["returns"]) ** 2.0).mean() - objective - ENTROPY * entropy


def rollout(
    model: ActorCritic, environments: gymnasium.vector.VectorEnv, states: np.ndarray
) -> tuple[Batch, np.ndarray, np.ndarray]:
    """The next steps, with the advantages of their actions; the states after them; and where episodes end."""
    seen: dict[str, list[np.ndarray]] = {name: [] for name in ("states", "actions", "log_probabilities")}
    values, rewards, ends = [], [], []
    with bb.no_grad():
        for _ in range(STEPS):
            log_policy, value = model(bb.asarray(states))
            actions = bb.random.categorical(log_policy)
            seen["states"].append(states)
            seen["actions"].append(np.asarray(actions))
            seen["log_probabilities"].append(np.asarray(log_probability(log_policy, actions)))
            states, reward, terminated, truncated, infos = environments.step(seen["actions"][-1])
            if truncated.any():  # time is up while the pole stands: add the value of the last state
                last = np.stack(infos["final_obs"][truncated])
                reward[truncated] += DISCOUNT * np.asarray(model(bb.asarray(last))[1])
            values.append(np.asarray(value))
            rewards.append(reward)
            ends.append(terminated | truncated)
        values.append(np.asarray(model(bb.asarray(states))[1]))
    advantage, advantages = np.zeros(ENVIRONMENTS), np.zeros((STEPS, ENVIRONMENTS), np.float32)
    for step in reversed(range(STEPS)):
        goes_on = 1.0 - ends[step]
        error = rewards[step] + DISCOUNT * goes_on * values[step + 1] - values[step]
        advantage = advantages[step] = error + DISCOUNT * LAMBDA * goes_on * advantage
    batch = {name: np.concatenate(x) for name, x in seen.items()}
    batch |= {"advantages": advantages.ravel(), "returns": (advantages + values[:-1]).ravel()}
    return batch, states, np.array(ends)


def draw(returns: list[float], steps: list[int], path: str) -> None:
    """Plot the lengths of the episodes, for light and dark pages."""
    from matplotlib import pyplot

    smooth = [mean(returns[max(0, i - 50) : i + 1]) for i in range(len(returns))]
    for theme in ("light", "dark"):
        with pyplot.style.context(HERE.parent / f"{theme}.mplstyle"):
            figure, axis = pyplot.subplots(figsize=(8, 2.8))
            axis.plot(steps, returns, ".", color="gray", markersize=3, alpha=0.5, label="an episode", rasterized=True)
            axis.plot(steps, smooth, label="mean of 50 episodes")
            axis.set(xlabel="steps in the environments", ylabel="steps balanced", ylim=(0, 520))
            axis.legend(frameon=False)
            figure.savefig(f"{path}-{theme}.svg", metadata={"Date": None})
            pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train; returns the mean return of the last 50 episodes, at most 500."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer iterations")
    parser.add_argument("--plot", metavar="PATH", help="write PATH-light.svg and PATH-dark.svg")
    options = parser.parse_args(arguments)
    iterations = 12 if options.quick else 150

    bb.random.seed(0)
    model = ActorCritic(observations=4, actions=2)
    optimizer = optim.Adam(optim.schedules.Linear(2.5e-3, 0.0, iterations * 16), eps=1e-5)
    environments = gymnasium.vector.SyncVectorEnv(
        [lambda: gymnasium.make("CartPole-v1")] * ENVIRONMENTS,
        autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP,
    )
    states, _ = environments.reset(seed=0)
    lengths, returns, steps = np.zeros(ENVIRONMENTS), list[float](), list[int]()
    for iteration in range(iterations):
        batch, states, ends = rollout(model, environments, states)
        for step, ended in enumerate(ends):
            lengths += 1.0
            returns += lengths[ended].tolist()
            steps += [(iteration * STEPS + step + 1) * ENVIRONMENTS] * int(ended.sum())
            lengths[ended] = 0.0
        for epoch in range(4):
            for part in data.batches(batch, batch_size=256, seed=iteration, epoch=epoch):
                value = loss(model, {name: bb.asarray(x) for name, x in part.items()})
                gradients, _ = optim.clip_grad_norm(optim.named_gradients(model, value.backward()), 0.5)
                optimizer.step(model, gradients)
        if iteration % 10 == 9:
            print(
                f"{(iteration + 1) * STEPS * ENVIRONMENTS:7,} steps: mean return {mean(returns[-50:]):.0f}", flush=True
            )
    environments.close()
    if options.plot:
        draw(returns, steps, options.plot)
    return {"return": mean(returns[-50:])}


if __name__ == "__main__":
    main()
