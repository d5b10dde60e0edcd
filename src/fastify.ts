/**
 * Doorbuster in your Fastify application:
 *
 *     import doorbuster from 'doorbuster/fastify';
 *     await app.register(doorbuster, { shop, prefix: '/shop' });
 *
 * The routes keep their own parser, validator and error handler; yours stay as they are.
 */
import './base/node-version.ts';
import type { FastifyInstance } from 'fastify';
import { doorbusterRoutes } from './http/plugin.ts';
import { type Doorbuster, engineOf, httpOptions, sourceOf } from './library/doorbuster.ts';

export interface DoorbusterPluginOptions {
  /** Created by createDoorbuster with `adminKey` and `authSecret`. The plugin does not close it. */
  shop: Doorbuster;
}

export default async function doorbuster(app: FastifyInstance, options: DoorbusterPluginOptions): Promise<void> {
  const { shop, runtime, options: made } = engineOf(options.shop);
  await doorbusterRoutes(app, { shop: sourceOf(shop), http: httpOptions(made), runtime });
}
