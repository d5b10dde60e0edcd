import Type, { type Static } from 'typebox';
import { BOUNDS, type Fault, type NewItem } from '../model/sale.ts';
import {
  buildSeatMap,
  SEAT_BOUNDS,
  SEAT_NAME_LENGTH_MAX,
  type SeatRowDefinition,
  saleSeatFaults,
  seatMapFaults,
} from '../model/seat-map.ts';
import { CODE_PATTERN, NAME_PATTERN } from '../model/text.ts';

/** Schemas of numbered seats, and what they are converted to. */

const strict = { additionalProperties: false };

/** Seats that one call may block or make free. */
export const BLOCKED_MAX = 1000;

export const SeatName = Type.String({
  minLength: 1,
  maxLength: SEAT_NAME_LENGTH_MAX,
  pattern: NAME_PATTERN,
  description: '`section/row/number`',
  examples: ['Stalls/A/12'],
});

/** Of a plan, in whatever unit. */
const COORDINATE = { minimum: -1e9, maximum: 1e9 };

const Part = Type.String({ minLength: 1, maxLength: SEAT_BOUNDS.nameLengthMax, pattern: NAME_PATTERN });
const SeatNumber = Type.Integer({ minimum: 0, maximum: SEAT_BOUNDS.numberMax });

export const SeatRow = Type.Object(
  {
    section: Part,
    row: Part,
    from: Type.Optional(Type.Integer({ ...SeatNumber, description: 'The first number; with `to`' })),
    to: Type.Optional(Type.Integer({ ...SeatNumber, description: 'The last number, inclusive' })),
    numbers: Type.Optional(
      Type.Array(SeatNumber, {
        minItems: 1,
        maxItems: SEAT_BOUNDS.rowSeatsMax,
        description:
          'Instead of `from` and `to`. Seats are neighbours if their numbers are consecutive: a gap separates',
      }),
    ),
    x: Type.Optional(
      Type.Number({ ...COORDINATE, description: 'Where the first seat is on a plan; with `y`, which grows downwards' }),
    ),
    y: Type.Optional(Type.Number(COORDINATE)),
    angle: Type.Optional(
      Type.Number({
        ...COORDINATE,
        description: 'The direction of the row from there in degrees, clockwise from the right; 0 without it',
      }),
    ),
  },
  { ...strict, description: `A row has at most ${SEAT_BOUNDS.rowSeatsMax} seats` },
);

export const SeatRows = Type.Array(SeatRow, {
  minItems: 1,
  maxItems: SEAT_BOUNDS.saleRowsMax,
  description: `Numbered seats, the best rows first. A sale has at most ${SEAT_BOUNDS.saleSeatsMax} in ${SEAT_BOUNDS.saleRowsMax} rows, each in one item`,
});

export const BlockSeats = Type.Object(
  { seats: Type.Array(SeatName, { minItems: 1, maxItems: BLOCKED_MAX, description: 'Of any items of the sale' }) },
  { ...strict, examples: [{ seats: ['Stalls/A/12', 'Stalls/A/13'] }] },
);

export const MoveOrder = Type.Object(
  {
    seats: Type.Array(SeatName, {
      minItems: 1,
      maxItems: BOUNDS.quantityMax,
      description: 'Of the same item, as many as the order has. It may keep some of its own',
    }),
  },
  { ...strict, examples: [{ seats: ['Stalls/A/12'] }] },
);

export type BlockSeatsBody = Static<typeof BlockSeats>;
export type MoveOrderBody = Static<typeof MoveOrder>;

const States = Type.String({
  description: 'A character a seat: `f` free, `r` reserved or queued, `s` sold, `b` blocked',
});

/** For /openapi.json: the answer is written once for all who ask. */
export const SaleSeats = Type.Object({
  revision: Type.String({ description: '`epoch.n`: rises with every change', examples: ['2.57'] }),
  items: Type.Array(
    Type.Object({
      code: Type.String({ pattern: CODE_PATTERN }),
      rows: Type.Array(
        Type.Object({
          section: Type.String(),
          row: Type.String(),
          numbers: Type.Array(Type.Integer()),
          states: States,
          x: Type.Optional(Type.Number()),
          y: Type.Optional(Type.Number()),
          angle: Type.Optional(Type.Number()),
        }),
      ),
    }),
  ),
});

/** An item has either `stock` or `seats`; the stock of a seated one is the size of its map. */
export type GivenUnits = { stock?: number; seats?: readonly SeatRowDefinition[] };

export type WithUnits<Item> = Omit<Item, 'stock' | 'seats'> & Pick<NewItem, 'stock' | 'seats'>;

/**
 * The items of a new sale with their seat maps; or what is wrong with them. `path`: where they are.
 */
export function withSeats<Item extends GivenUnits>(
  items: readonly Item[],
  path = '/items',
): WithUnits<Item>[] | Fault[] {
  const faults = items.flatMap((item, index) => unitsFaults(item, `${path}/${index}`));
  if (faults.length > 0) return faults.slice(0, FAULTS_MAX);
  const seated = items.flatMap(({ seats }, index) =>
    seats === undefined ? [] : [{ path: `${path}/${index}/seats`, seats }],
  );
  const between = saleSeatFaults(seated);
  if (between.length > 0) return between;
  return items.map(withUnits);
}

/** The item has no faults. */
export function withUnits<Item extends GivenUnits>({ stock, seats, ...item }: Item): WithUnits<Item> {
  if (seats === undefined) return { ...item, stock: stock! };
  const map = buildSeatMap(seats);
  return { ...item, stock: map.size, seats: map };
}

/** What is wrong with the units of one item. */
export function unitsFaults({ stock, seats }: GivenUnits, path: string): Fault[] {
  if (stock === undefined && seats === undefined) {
    return [{ path: `${path}/stock`, message: 'is missing: an item has either "stock" or "seats"' }];
  }
  if (seats === undefined) return [];
  if (stock !== undefined) return [{ path, message: 'must have either "stock" or "seats", not both' }];
  return seatMapFaults(seats, `${path}/seats`);
}

const FAULTS_MAX = 20;

export function isFaults(value: readonly object[]): value is Fault[] {
  return value.length > 0 && 'message' in value[0]!;
}
