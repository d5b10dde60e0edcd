import { type Config, variableOf } from '../base/config.ts';
import { TerminalError } from '../base/errors.ts';
import { isLoopback } from '../base/loopback.ts';
import { weaknessOf } from '../base/secrets.ts';

type Secrets = Pick<Config, 'adminKeys' | 'authSecrets' | 'paymentSecrets' | 'providerSecrets' | 'host'>;

/**
 * Whoever can reach the server can guess: off loopback a key or secret that is short, monotonous or printed in our docs is
 * none. What is wrong, in a line that names the setting; null: nothing.
 */
export function weakSecret({ adminKeys, authSecrets, paymentSecrets, providerSecrets, host }: Secrets): string | null {
  if (isLoopback(host)) return null;
  const given: [variable: string, secrets: readonly string[]][] = [
    [variableOf('adminKeys'), (adminKeys ?? []).map(({ key }) => key)],
    [variableOf('authSecrets'), authSecrets ?? []],
    [variableOf('paymentSecrets'), paymentSecrets],
    ...Object.entries(providerSecrets).map(([name, secrets]): [string, string[]] => [
      `${variableOf('paymentSecrets')}_${name}`,
      secrets,
    ]),
  ];
  for (const [variable, secrets] of given) {
    const weakness = secrets.map(weaknessOf).find((found) => found !== null);
    if (weakness === undefined) continue;
    return `${variable} ${weakness}: choose a random one before you listen on ${host} (openssl rand -hex 24)`;
  }
  return null;
}

export function mustBeStrong(secrets: Secrets): void {
  const weak = weakSecret(secrets);
  if (weak !== null) throw new TerminalError('bad_config', weak);
}
