import { type Config, variableOf } from '../base/config.ts';
import { TerminalError } from '../base/errors.ts';
import { isLoopback } from '../base/loopback.ts';
import { weaknessOf } from '../base/secrets.ts';

type Secrets = Pick<Config, 'adminKeys' | 'authSecrets' | 'paymentSecrets' | 'providerSecrets' | 'host'>;

/**
 * A server that others can reach must not use a key or secret that can be guessed: a short or monotonous one, or an example
 * from our docs. Returns a line that names the setting, or null. Loopback is exempt.
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
    return `${variable} ${weakness}: to listen on ${host}, set a random one (openssl rand -hex 24)`;
  }
  return null;
}

export function mustBeStrong(secrets: Secrets): void {
  const weak = weakSecret(secrets);
  if (weak !== null) throw new TerminalError('bad_config', weak);
}
