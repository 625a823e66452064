"""A bank: many processes transfer money between accounts, each transfer is one transaction, and the sum never changes.

    python examples/bank.py DATABASE open --accounts 10 --balance 100     once
    python examples/bank.py DATABASE work --transfers 20                  in as many processes as you like
    python examples/bank.py DATABASE audit                                at any time

``run`` calls its function again, on the newest version, when another process has changed what it read. So the function
only reads and writes in its transaction. An ``UnknownOutcomeError`` means that it is not known whether the transfer
has landed; each transfer has a request id, so it is just sent again, and is applied once.
"""

from __future__ import annotations

import argparse
import random
import uuid

import pyarrow as pa

import dolmen
from dolmen.api.database import Database
from dolmen.errors import RetryableError, UnknownOutcomeError
from dolmen.transactions.transaction import Transaction

ACCOUNTS = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("balance", pa.int64(), nullable=False)])
TRANSFERS = pa.schema([("id", pa.string()), ("source", pa.int64()), ("target", pa.int64()), ("amount", pa.int64())])


def open_accounts(db: Database, accounts: int, balance: int) -> None:
    """Makes the tables, with so many accounts of this balance, in one commit."""
    with db.transaction() as tx:
        rows = [{"id": number, "balance": balance} for number in range(accounts)]
        tx.create_table("accounts", ACCOUNTS, primary_key="id").append(rows)
        tx.create_table("transfers", TRANSFERS)


class OverdrawnError(Exception):
    """An account has less than is to be taken from it."""


def transfer(db: Database, source: int, target: int, amount: int, request: str) -> None:
    """Moves money, once for each request id, however often it is called. Raises OverdrawnError."""

    def move(tx: Transaction) -> None:
        tx.bind(request, f"{amount} from {source} to {target}")
        if tx.has_applied(request):  # an earlier try has landed
            return
        accounts = tx.table("accounts")
        balances = {row["id"]: row["balance"] for row in accounts.get_many([source, target]).to_pylist()}
        if balances[source] < amount:
            raise OverdrawnError(f"account {source} has {balances[source]}, not {amount}")
        balances[source] -= amount
        balances[target] += amount
        accounts.upsert([{"id": id, "balance": balance} for id, balance in balances.items()], request=request)
        row = {"id": request, "source": source, "target": target, "amount": amount}
        tx.table("transfers").append([row], request=request)

    db.run(move)


def transfer_surely(db: Database, source: int, target: int, amount: int, tries: int = 20) -> None:
    """The same under a request id of its own, tried again when the store fails or the outcome is unknown."""
    request = uuid.uuid4().hex
    for left in reversed(range(tries)):
        try:
            transfer(db, source, target, amount, request)
        except (UnknownOutcomeError, RetryableError):
            if not left:
                raise
        else:
            return


def audit(db: Database) -> tuple[int, int, int]:
    """The sum of all balances, the least balance and the number of transfers, all of one version."""
    query = "SELECT sum(balance)::BIGINT, min(balance), (SELECT count(*) FROM transfers) FROM accounts"
    found: tuple[int, int, int] = db.sql(query).fetchall()[0]
    return found


def main() -> None:
    """Opens the accounts, works, or audits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("database")
    parser.add_argument("what", choices=("open", "work", "audit"))
    parser.add_argument("--accounts", type=int, default=10)
    parser.add_argument("--balance", type=int, default=100)
    parser.add_argument("--transfers", type=int, default=20)
    given = parser.parse_args()
    db = dolmen.open(given.database)
    if given.what == "open":
        open_accounts(db, given.accounts, given.balance)
    elif given.what == "work":
        numbers = db.table("accounts").scan(["id"]).to_arrow()["id"].to_pylist()
        done = 0
        for _ in range(given.transfers):
            source, target = random.sample(numbers, 2)
            try:
                transfer_surely(db, source, target, random.randint(1, 50))
            except OverdrawnError:
                continue
            done += 1
        print(f"{done} of {given.transfers} transfers", flush=True)
    else:
        total, least, transfers = audit(db)
        print(f"sum {total}, least balance {least}, {transfers} transfers", flush=True)


if __name__ == "__main__":
    main()
