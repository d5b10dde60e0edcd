import { scryptSync } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { seededRandom, systemRandom } from '../../src/base/random.ts';
import { isCommon } from '../../src/social/accounts/common.ts';
import { SCRYPT_COST, ScryptHasher } from '../../src/social/accounts/password.ts';

/** Cheap: how much a hash costs is not the subject here. */
const CHEAP = { log2N: 4, r: 1, p: 1 };

describe('a password hash', () => {
  const hasher = new ScryptHasher(systemRandom, CHEAP);

  it('is scrypt of the password and a salt of its own, with its parameters in the text', async () => {
    const [one, other] = [await hasher.hash('nine purple teapots'), await hasher.hash('nine purple teapots')];
    expect(one).toMatch(/^\$scrypt\$ln=4,r=1,p=1\$[A-Za-z0-9+/]{22}\$[A-Za-z0-9+/]{43}$/);
    const [, , , salt, key] = one.split('$') as [string, string, string, string, string];
    const bytes = scryptSync('nine purple teapots', Buffer.from(salt, 'base64'), 32, { N: 16, r: 1, p: 1 });
    expect(bytes.toString('base64').replaceAll('=', '')).toBe(key);
    expect(other.split('$')[3], 'another salt').not.toBe(salt);
    expect(one.length).toBeLessThanOrEqual(255);
  });

  it('matches its own password only, and that in any spelling of Unicode', async () => {
    const hash = await hasher.hash('caf\u00e9 №9 ﬁsh');
    expect(await hasher.matches('cafe\u0301 №9 ﬁsh', hash)).toBe(true);
    expect(await hasher.matches('café No9 fish', hash), 'NFKC').toBe(true);
    for (const wrong of ['cafe №9 ﬁsh', 'Café №9 ﬁsh', 'café №9 ﬁsh ', '']) {
      expect([wrong, await hasher.matches(wrong, hash)]).toEqual([wrong, false]);
    }
  });

  it('made with other parameters stays valid after these have changed', async () => {
    const before = await new ScryptHasher(systemRandom, { log2N: 3, r: 2, p: 2 }).hash('nine purple teapots');
    expect(await hasher.matches('nine purple teapots', before)).toBe(true);
    expect(await hasher.matches('nine purple teapot', before)).toBe(false);
  });

  it('of nobody is checked, too, and never matches', async () => {
    expect(await hasher.matches('nine purple teapots', null)).toBe(false);
  });

  it('that is damaged fails, and asks for no gigabytes', async () => {
    const hash = await hasher.hash('nine purple teapots');
    for (const damaged of ['', 'x', hash.replace('ln=4', 'ln=30'), hash.replace('scrypt', 'md5'), `${hash}$`]) {
      await expect(hasher.matches('nine purple teapots', damaged), damaged).rejects.toThrow('password hash');
    }
  });

  it('costs what it should, and does not hold the event loop meanwhile', async () => {
    expect(SCRYPT_COST).toEqual({ log2N: 15, r: 8, p: 1 });
    let turns = 0;
    const turning = setInterval(() => turns++, 1);
    expect(await new ScryptHasher(seededRandom(1)).matches('nine purple teapots', null)).toBe(false);
    clearInterval(turning);
    expect(turns).toBeGreaterThan(1);
  });
});

describe('common passwords', () => {
  const text = readFileSync(new URL('../../src/social/accounts/common-passwords.txt', import.meta.url), 'utf8');
  const [head, ...lines] = text.trimEnd().split('\n');

  it('are some hundreds, in lower case, sorted, and none that is too short anyway', () => {
    expect(head).toMatch(/^#/);
    expect(lines.length).toBeGreaterThan(500);
    expect(lines).toEqual([...new Set(lines)].toSorted());
    expect(lines.filter((line) => line !== line.toLowerCase().trim() || line.length < 8)).toEqual([]);
  });

  it.each(['password', 'PassWord', '12345678', 'iloveyou', 'qwerty123', 'ｐａｓｓｗｏｒｄ', 'p@ssw0rd'])(
    '%s is one',
    (word) => {
      expect(isCommon(word)).toBe(true);
    },
  );

  it.each(['nine purple teapots', 'password ', '', '# Passwords that guessers try first'])('%j is none', (word) => {
    expect(isCommon(word)).toBe(false);
  });
});
