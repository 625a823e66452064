"""An inventory: many shops take orders at once, stock never falls below zero, and each order is taken once.

    python examples/inventory.py DATABASE stock apples 100            adds to the stock of an item
    python examples/inventory.py DATABASE order o-17 apples 3         takes an order; again with the same id: no effect
    python examples/inventory.py DATABASE report                      stock and orders, all of one version

An order is one transaction over two tables. It reads the stock, so it is valid only if the stock has not changed
meanwhile; otherwise ``run`` repeats it on the newest version. Its statements belong to a request with the order's id:
dolmen applies them once, and refuses the same id with other content, which is what is passed to ``bind``.
"""

from __future__ import annotations

import argparse

import pyarrow as pa

import dolmen
from dolmen.api.database import Database
from dolmen.errors import TableExistsError
from dolmen.transactions.transaction import Transaction

STOCK = pa.schema([pa.field("item", pa.string(), nullable=False), pa.field("pieces", pa.int64(), nullable=False)])
ORDERS = pa.schema([pa.field("id", pa.string(), nullable=False), ("item", pa.string()), ("pieces", pa.int64())])


class OutOfStockError(Exception):
    """There are fewer pieces than were ordered."""


def create_tables(db: Database) -> None:
    """Makes both tables, unless somebody has done so."""
    try:
        with db.transaction() as tx:
            tx.create_table("stock", STOCK, primary_key="item")
            tx.create_table("orders", ORDERS, primary_key="id")
    except TableExistsError:
        return


def add_stock(db: Database, item: str, pieces: int) -> int:
    """Adds pieces to the stock of an item. Returns how many there are now."""

    def add(tx: Transaction) -> int:
        stock = tx.table("stock")
        total = pieces_of(tx, item) + pieces
        stock.upsert([{"item": item, "pieces": total}])
        return total

    return db.run(add)


def order(db: Database, id: str, item: str, pieces: int) -> None:
    """Takes an order, once, however often it is called with this id, as after an error that leaves the outcome unknown.

    Raises:
        OutOfStockError: there are too few pieces; nothing has changed.
        AppliedIdError: another order has this id.
    """

    def take(tx: Transaction) -> None:
        tx.bind(id, f"{pieces} {item}")
        if tx.has_applied(id):
            return
        left = pieces_of(tx, item) - pieces
        if left < 0:
            raise OutOfStockError(f"{left + pieces} {item} left, {pieces} ordered")
        tx.table("stock").upsert([{"item": item, "pieces": left}], request=id)
        tx.table("orders").append([{"id": id, "item": item, "pieces": pieces}], request=id)

    db.run(take)


def pieces_of(tx: Transaction, item: str) -> int:
    """The stock of an item as a transaction sees it."""
    row = tx.table("stock").get(item)
    return 0 if row is None else int(row["pieces"])


def report(db: Database) -> list[tuple[str, int, int]]:
    """Each item with its stock and the pieces that were ordered, all of one version."""
    query = """
        SELECT item, stock.pieces, coalesce(sum(orders.pieces), 0)::BIGINT
        FROM stock LEFT JOIN orders USING (item) GROUP BY item, stock.pieces ORDER BY item
    """
    found: list[tuple[str, int, int]] = db.sql(query).fetchall()
    return found


def main() -> None:
    """Adds stock, takes an order, or reports."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("database")
    commands = parser.add_subparsers(dest="what", required=True)
    for name in ("stock", "order", "report"):
        command = commands.add_parser(name)
        if name == "order":
            command.add_argument("id")
        if name != "report":
            command.add_argument("item")
            command.add_argument("pieces", type=int)
    given = parser.parse_args()
    db = dolmen.open(given.database)
    create_tables(db)
    if given.what == "stock":
        print(f"{add_stock(db, given.item, given.pieces)} {given.item}", flush=True)
    elif given.what == "order":
        order(db, given.id, given.item, given.pieces)
        print(f"taken: {given.id}", flush=True)
    for item, pieces, ordered in report(db) if given.what == "report" else ():
        print(f"{item}: {pieces} left, {ordered} ordered", flush=True)


if __name__ == "__main__":
    main()
