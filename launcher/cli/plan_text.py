"""A plan as a person reads it, in 80 columns."""

import textwrap
from collections.abc import Sequence

from cluster.plan import Action
from cluster.prices import Quote, total
from launcher.dry_run import Plan

WIDTH = 79


def plan_text(plan: Plan) -> str:
    """Every step in its order, then the price with its date and source."""
    lines = [f"`{plan.command}` of {plan.cluster}, step by step:" if plan.actions else f"{plan.cluster}: no step"]
    lines += _steps(plan.actions)
    for note in plan.notes:
        lines += textwrap.wrap(note, WIDTH, initial_indent="! ", subsequent_indent="  ", break_on_hyphens=False)
    lines += _price(plan)
    return "\n".join(lines)


def _steps(actions: Sequence[Action]) -> list[str]:
    kinds = max((len(action.kind) for action in actions), default=0)
    names = max((len(action.name) for action in actions), default=0)
    lines = []
    for action in actions:
        start = f"  {action.verb:<6}  {action.kind:<{kinds}}  "
        line = f"{start}{action.name:<{names}}  {action.detail}".rstrip()
        if len(line) <= WIDTH:
            lines.append(line)
            continue
        indent = " " * min(len(start), 12)
        lines.append(f"{start}{action.name}")
        lines += textwrap.wrap(action.detail, WIDTH, initial_indent=indent, subsequent_indent=indent)
    return lines


def _price(plan: Plan) -> list[str]:
    if not plan.is_paid:
        return ["price: nothing is rented"]
    if plan.command == "down" and not plan.quotes:
        return []  # nothing that is billed ends, and a note says why
    unknown = [str(quote.rental) for quote in plan.quotes if quote.per_hour is None]
    price = total(plan.quotes)
    if price is None:
        what = "; ".join(unknown) or "what is rented is not known"
        text = f"price: unknown ({what}); prices.toml in the state folder can tell it, see docs/cloud.md"
        return textwrap.wrap(text, WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    until = "an hour until it is down" if plan.command == "up" else "an hour, no more once it is down"
    until = "an hour, whether it is up or not" if plan.is_adopted else until
    lines = [f"price: {price.per_hour:,.2f} USD {until}; disks and traffic not counted"]
    lines += [f"  {quote.rental}: {_each(quote):,.4g} USD each" for quote in plan.quotes]
    lines.append(f"  as read on {price.date} in")
    lines += [f"  {source}" for source in price.source.split(", ")]
    if price.spot:
        lines.append("  Spot prices change from day to day.")
    return lines


def _each(quote: Quote) -> float:
    return (quote.per_hour or 0.0) / quote.rental.count
