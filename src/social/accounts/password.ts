import { scrypt, timingSafeEqual } from 'node:crypto';
import { invariant } from '../../base/errors.ts';
import type { Random } from '../../base/random.ts';
import { hashedForm } from '../../model/account.ts';

/** Turns passwords into texts that can be stored, and checks passwords against them. */
export interface PasswordHasher {
  /** A hash with a salt of its own, at most 255 characters long. */
  hash(password: string): Promise<string>;
  /** Whether it is the password of that hash. Null: there is none; false, after the same work. */
  matches(password: string, hash: string | null): Promise<boolean>;
}

/** Cost parameters of scrypt (RFC 7914). One hash takes about 128 · r · 2^log2N bytes of memory. */
export interface ScryptCost {
  readonly log2N: number;
  readonly r: number;
  readonly p: number;
}

/** 32 MiB, and about 80 ms of one thread on the machine that our measurements come from. */
export const SCRYPT_COST: ScryptCost = { log2N: 15, r: 8, p: 1 };

const SALT_BYTES = 16;
const KEY_BYTES = 32;
/** A damaged row must not ask for gigabytes. */
const LOG2N_MAX = 20;

/** `$scrypt$ln=15,r=8,p=1$<salt>$<hash>`, in base64 without padding. */
const STORED = /^\$scrypt\$ln=(\d{1,2}),r=(\d{1,2}),p=(\d{1,2})\$([A-Za-z0-9+/]{1,64})\$([A-Za-z0-9+/]{1,128})$/;

/**
 * Passwords hashed by scrypt, in Node's thread pool: the event loop never waits for it. DNS, files and other cryptography use the same
 * few threads, so whoever calls must bound how many hashes are under way (accounts.ts).
 *
 * Passwords must not contain NUL, which contract/schemas.ts refuses: to scrypt a password with NULs at its end is the same password.
 *
 * The hash names its own parameters, so that SCRYPT_COST can be raised later. Hashes made before stay valid and keep their cost; from
 * then on the time of a sign-in tells an old account from a name that does not exist, until such hashes are renewed at a sign-in.
 */
export class ScryptHasher implements PasswordHasher {
  readonly #random: Random;
  readonly #cost: ScryptCost;
  /** A hash of the same cost that no password has. */
  readonly #nobody: string;

  constructor(random: Random, cost: ScryptCost = SCRYPT_COST) {
    this.#random = random;
    this.#cost = cost;
    this.#nobody = storedText(cost, this.#bytes(SALT_BYTES), this.#bytes(KEY_BYTES));
  }

  async hash(password: string): Promise<string> {
    const salt = this.#bytes(SALT_BYTES);
    return storedText(this.#cost, salt, await derived(password, salt, this.#cost, KEY_BYTES));
  }

  async matches(password: string, hash: string | null): Promise<boolean> {
    const { cost, salt, key } = parsed(hash ?? this.#nobody);
    const given = await derived(password, salt, cost, key.length);
    return timingSafeEqual(given, key) && hash !== null;
  }

  #bytes(count: number): Buffer {
    return Buffer.from(this.#random.secret(count), 'hex');
  }
}

function storedText({ log2N, r, p }: ScryptCost, salt: Buffer, key: Buffer): string {
  return `$scrypt$ln=${log2N},r=${r},p=${p}$${unpadded(salt)}$${unpadded(key)}`;
}

function unpadded(bytes: Buffer): string {
  return bytes.toString('base64').replaceAll('=', '');
}

function parsed(hash: string): { cost: ScryptCost; salt: Buffer; key: Buffer } {
  const found = STORED.exec(hash);
  invariant(found !== null && Number(found[1]) <= LOG2N_MAX, 'a stored password hash has a form that is known');
  const [, log2N, r, p, salt, key] = found as unknown as [string, string, string, string, string, string];
  return {
    cost: { log2N: Number(log2N), r: Number(r), p: Number(p) },
    salt: Buffer.from(salt, 'base64'),
    key: Buffer.from(key, 'base64'),
  };
}

function derived(password: string, salt: Buffer, { log2N, r, p }: ScryptCost, bytes: number): Promise<Buffer> {
  const N = 2 ** log2N;
  // Node's limit of 32 MiB would be too small by a few blocks.
  const maxmem = 128 * r * (N + p + 4) * 2;
  return new Promise((resolve, reject) => {
    scrypt(hashedForm(password), salt, bytes, { N, r, p, maxmem }, (error, key) => {
      if (error === null) resolve(key);
      else reject(error);
    });
  });
}
